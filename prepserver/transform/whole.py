"""The most common training pipeline in one call of compiled code: a random crop, resized, perhaps flipped.

This saves the Python between the steps, several hundredths of a sample's time. The steps (`rowmaker`, `decode`,
`geometry`) define the result, and are taken one by one wherever this module declines: another pipeline, several rows of
one sample, no compiled kernels, or a sample that is not entirely plain.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import RandomHorizontalFlip, RandomResizedCrop, ToLayout
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.random_words import SampleKey, eight_words, place_of
from prepserver.protocol.packed import IndexedScan, StoredPixels
from prepserver.transform.decode import scratch
from prepserver.transform.native import kernels
from prepserver.transform.native.compiled import CropRecipe
from prepserver.transform.stage import FIRST, Array, Draws

_DECODED = (np.ndarray, StoredPixels)


class WholeCrop:
    """Makes rows of one view of a pipeline.

    Args:
        crop: The first op after `Decode`.
        flips: Probability of the horizontal flip after it; None without a flip.
        pipeline: The pipeline.
        view: Which of its views.
    """

    __slots__ = ("_flips", "_place", "_recipe", "_view")

    def __init__(self, crop: RandomResizedCrop, flips: float | None, pipeline: Pipeline, view: int) -> None:
        self._recipe = CropRecipe.of(crop, pipeline.decode)
        self._flips = flips
        self._view = view
        self._place = place_of(FIRST, view)

    def make(
        self, data: bytes | IndexedScan | StoredPixels | npt.NDArray[np.uint8], key: SampleKey, out: Array
    ) -> bool:
        """Make the row and return True; or return False, with anything in `out`."""
        compiled = kernels()
        if compiled is None or isinstance(data, _DECODED):
            return False
        mirror = self._flips is not None and Draws(key, FIRST + 1, self._view).uniform() < self._flips
        # The buffer has the size of the largest part that was made step by step so far.
        return compiled.crop(data, self._recipe, eight_words(key, self._place), mirror, scratch(1), out)


def whole_crop(pipeline: Pipeline, view: int) -> WholeCrop | None:
    """Return the maker of rows of this pipeline; None for other pipelines."""
    ops: list[Op] = list(pipeline.ops[FIRST:])
    if ops and isinstance(ops[-1], ToLayout) and ops[-1].layout == "HWC":
        ops.pop()
    match ops:
        case [RandomResizedCrop(interpolation="bilinear") as crop]:
            return WholeCrop(crop, None, pipeline, view)
        case [RandomResizedCrop(interpolation="bilinear") as crop, RandomHorizontalFlip(p=flips)]:
            return WholeCrop(crop, flips, pipeline, view)
        case _:
            return None
