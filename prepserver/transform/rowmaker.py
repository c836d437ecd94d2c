"""A pipeline made ready to run: plan (sizes and random numbers), then render pixels into a row.

Planning needs a header only and says how much of the image is needed, so that decoding can stop there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from prepserver.pipeline.color import DEFAULT_MAX_PIXELS
from prepserver.pipeline.op import ImageState, Op
from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    Normalize,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline, RowFormat
from prepserver.protocol.layout import image_field
from prepserver.transform.draw import Draws, SampleKey
from prepserver.transform.errors import BadSample
from prepserver.transform.geometry import (
    CenterCropStage,
    FlipStage,
    PadStage,
    RandomCropStage,
    ResizedCropStage,
    ResizeStage,
)
from prepserver.transform.stage import Array, Box, Drawn, Stage, Step
from prepserver.transform.values import ColorJitterStage, GrayscaleStage, NormalizeStage, ToDtypeStage
from prepserver.transform.whole import WholeCrop, whole_crop

_STAGES: dict[type[Op], Callable[[Any, int], Stage]] = {
    RandomResizedCrop: ResizedCropStage,
    Resize: ResizeStage,
    CenterCrop: CenterCropStage,
    RandomCrop: RandomCropStage,
    Pad: PadStage,
    RandomHorizontalFlip: FlipStage,
    RandomVerticalFlip: FlipStage,
    ColorJitter: ColorJitterStage,
    Grayscale: GrayscaleStage,
    ToDtype: ToDtypeStage,
    Normalize: NormalizeStage,
}


_NOTHING = Drawn(None, 0, 0)

_STEP_LIMIT_BYTES = 1 << 30
"""For the result of one step. With the default `max_pixels` every sample keeps within it (64 megapixels of float32 are
732 MiB); it stops a pipeline with a larger one from taking gigabytes for a whole image of floats."""


class Plan(NamedTuple):
    """What one maker will do with one sample.

    Attributes:
        part: What of the upright image is needed.
        steps: One for each stage: what it looks at, None for all, and what it does with that, None for nothing.
        scale: The part is wanted at 1/scale, where a decoder makes that; all of it is multiples of this number.
    """

    part: Box
    steps: tuple[tuple[Box | None, Step | None], ...]
    scale: int = 1


class RowMaker:
    """Makes one view of rows from decoded pixels, by one pipeline.

    Args:
        pipeline: What to do.
        view: Which of the pipeline's views; the first is what a pipeline with one view gives.

    Attributes:
        row: The image as stored in a row.
        upright: Whether pixels are to be turned by their EXIF orientation before they come here.
        max_pixels: Largest image that may be decoded.
        whole: What may make a row of one sample for itself in one call; None for most pipelines.
    """

    def __init__(self, pipeline: Pipeline, view: int = 0) -> None:
        self._view = view
        self.row: RowFormat = pipeline.row
        self.upright = pipeline.decode.exif_orientation
        self.max_pixels = pipeline.decode.max_pixels
        self.whole: WholeCrop | None = whole_crop(pipeline, view)
        last = pipeline.ops[-1]
        self._planar = isinstance(last, ToLayout) and last.layout == "CHW"
        self._stages = [
            _STAGES[type(op)](op, place)
            for place, op in enumerate(pipeline.ops)
            if place > 0 and not isinstance(op, ToLayout)
        ]
        self._names = [type(pipeline.ops[stage.place]).__name__ for stage in self._stages]
        # From here on all results have the row's shape and dtype, so they are written to the row itself.
        self._landing = max((k for k, stage in enumerate(self._stages) if stage.settles), default=0)
        # An op that follows the sample's size may not blow it up: a sliver of 1 x 60000 pixels resized to a
        # shorter side of 1000 would take 180 GB.
        row_pixels = prod(self.row.shape)  # times channels: a bound need not be exact
        self._step_limit = max(self.max_pixels, DEFAULT_MAX_PIXELS, row_pixels)
        self._step_limit_bytes = max(_STEP_LIMIT_BYTES, self.row.nbytes)
        state, self._pixel_bytes = ImageState(), []  # after each stage
        for op in pipeline.ops[1:]:
            state = op.shape_after(state)
            self._pixel_bytes.append(state.channels * np.dtype(state.dtype).itemsize)

    def plan(self, height: int, width: int, key: SampleKey) -> Plan:
        """Draw the random parameters for an upright image of `height` x `width`.

        Raises:
            BadSample: the image is too large, or too small for an op.
        """
        if height * width > self.max_pixels:
            raise BadSample(f"{height}x{width} pixels are more than max_pixels={self.max_pixels}")
        part, scale = Box(0, 0, height, width), 1
        steps: list[tuple[Box | None, Step | None]] = []
        mirrored: Step | None = None  # what the step before would be if it did this one's flip too
        for number, stage in enumerate(self._stages):
            drawn = stage.draw(height, width, Draws(key, stage.place, self._view))
            height, width = drawn.height, drawn.width
            if height * width > self._step_limit:
                raise BadSample(f"would become {height}x{width} pixels on the way, more than {self._step_limit}")
            if (nbytes := height * width * self._pixel_bytes[number]) > self._step_limit_bytes:
                raise BadSample(
                    f"would take {nbytes >> 20} MiB as {height}x{width} pixels on the way, more than "
                    f"{self._step_limit_bytes >> 20} MiB: crop or resize before ToDtype"
                )
            if stage.mirrors and drawn.step is not None and mirrored is not None:
                steps[-1] = steps[-1][0], mirrored
                drawn = _NOTHING
            if number == 0:
                part, scale = drawn.part or part, drawn.scale
                steps.append((None, drawn.step))
            else:
                steps.append((drawn.part, drawn.step))
            mirrored = drawn.mirrored
        return Plan(part, tuple(steps), scale)

    def render(self, plan: Plan, image: Array, out: Array) -> None:
        """Carry out the plan.

        Args:
            plan: From `plan`, for this image.
            image: `plan.part` of the upright image: uint8 RGB of that height and width, or of these over
                `plan.scale`. Not written to.
            out: The row: an array of `row.shape` and `row.dtype`.

        Raises:
            ValueError: `out` is of another shape or dtype.
        """
        if out.shape != self.row.shape or out.dtype != self.row.dtype:
            raise ValueError(f"the row is {self.row.shape} {self.row.dtype}, not {out.shape} {out.dtype}")
        target: Array = out.transpose(1, 2, 0) if self._planar else out
        try:
            for number, (part, step) in enumerate(plan.steps):
                if part is not None:
                    image = part.of(image)
                if step is not None:
                    image = step(image, target if number >= self._landing else None)
        except Exception as e:
            e.add_note(f"in {self._names[number]}")
            raise
        if image is not target:
            target[...] = image


def row_makers(pipeline: Pipeline) -> dict[str, RowMaker]:
    """Return the makers of all that a row holds of a sample: for each view one, by the name of its field."""
    return {image_field(view): RowMaker(pipeline, view) for view in range(pipeline.views)}
