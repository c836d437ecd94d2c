"""The image of the most common training pipeline in one call of compiled code: a random crop, resized, perhaps flipped.

This saves the Python between the steps, several hundredths of a sample's time. The steps (`rowmaker`, `decode`,
`geometry`) define the result, and are taken one by one wherever this module declines: another pipeline, several rows of
one sample, no compiled kernels, or a sample that is not entirely plain. The other fields of a row follow the
image by the same moves in either case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.ops import RandomHorizontalFlip, RandomResizedCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.random_words import SampleKey, eight_words, op_key
from prepserver.protocol.packed import IndexedScan, StoredPixels
from prepserver.transform.decode import scratch
from prepserver.transform.moves import COLUMNS, Mirror, Move, Scale
from prepserver.transform.native import kernels
from prepserver.transform.native.compiled import Cropped, CropRecipe
from prepserver.transform.objects import BoxStage
from prepserver.transform.stage import FIRST, Array, Draws, RecordStage, Stage

_DECODED = (np.ndarray, StoredPixels)


class WholeCrop:
    """Makes the image of rows of one view of a pipeline whose first op after `Decode` is `crop`.

    `flip` is the horizontal flip after it, and its place; None without one. `boxes` are the stages that change boxes.
    """

    __slots__ = ("_flip", "_flips", "_moves", "_place", "_recipe", "_view")

    def __init__(
        self,
        crop: RandomResizedCrop,
        flip: tuple[RandomHorizontalFlip, int] | None,
        boxes: Sequence[BoxStage[Any]],
        pipeline: Pipeline,
        view: int,
    ) -> None:
        self._recipe = CropRecipe.of(crop, pipeline.decode)
        self._flips = None if flip is None else flip[0].p
        self._flip = FIRST if flip is None else flip[1]
        self._view = view
        self._place = op_key(FIRST, view)
        before: list[Move] = [Scale(*crop.size), *(stage.change for stage in boxes if stage.place < self._flip)]
        after: list[Move] = [stage.change for stage in boxes if stage.place > self._flip]
        self._moves = (*before, *after), (*before, Mirror(COLUMNS), *after)

    def make(
        self, data: bytes | IndexedScan | StoredPixels | npt.NDArray[np.uint8], key: SampleKey, out: Array
    ) -> tuple[Cropped, bool] | None:
        """Make the image of a row.

        Returns:
            What the row shows, and whether it is flipped; None if it was not made, with anything in `out`.
        """
        compiled = kernels()
        if compiled is None or isinstance(data, _DECODED):
            return None
        mirror = self._flips is not None and Draws(key, self._flip, self._view).uniform() < self._flips
        # The buffer has the size of the largest part that was made step by step so far.
        made = compiled.crop(data, self._recipe, eight_words(key, self._place), mirror, scratch(1), out)
        return None if made is None else (made, mirror)

    def moves(self, made: Cropped, mirror: bool) -> tuple[Move, ...]:
        """Return what happens to all else on the plane of an image that `make` made."""
        return (made.cut, *self._moves[mirror])


def whole_crop(pipeline: Pipeline, view: int, stages: Sequence[Stage[Any]]) -> WholeCrop | None:
    """Return what makes the image of rows of this pipeline, with these stages; None for other pipelines."""
    boxes = [stage for stage in stages if isinstance(stage, BoxStage)]
    places = [stage.place for stage in stages if not isinstance(stage, BoxStage | RecordStage)]
    if places[:1] != [FIRST]:
        return None
    match [pipeline.ops[place] for place in places]:
        case [RandomResizedCrop(interpolation="bilinear") as crop]:
            return WholeCrop(crop, None, boxes, pipeline, view)
        case [RandomResizedCrop(interpolation="bilinear") as crop, RandomHorizontalFlip() as flip]:
            return WholeCrop(crop, (flip, places[1]), boxes, pipeline, view)
        case _:
            return None
