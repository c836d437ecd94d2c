"""A pipeline made ready to run: plan (sizes and random numbers), then render pixels into a row.

Planning needs only a header and says how much of the image is needed, so that decoding can stop there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from prepserver.pipeline.kinds import Boxes, Image, Size, Spatial
from prepserver.pipeline.ops.decode import DEFAULT_MAX_PIXELS
from prepserver.pipeline.ops.to_layout import ToLayout
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.random_words import SampleKey
from prepserver.pipeline.record import Record, RowField, with_index
from prepserver.transform.draw import Draws
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.moves import Move
from prepserver.transform.objects import Objects
from prepserver.transform.ops import stage_of
from prepserver.transform.stage import Array, Box, Drawn, Stage, Step
from prepserver.transform.whole import WholeCrop, whole_crop

_NOTHING = Drawn(None, 0, 0)

_STEP_LIMIT_BYTES = 1 << 30
"""For the result of one step. With the default `max_pixels` every sample keeps within it (64 megapixels of float32 are
732 MiB); it stops a pipeline with a larger one from taking gigabytes for a whole image of floats."""


class Plan(NamedTuple):
    """What one maker will do with one sample.

    Attributes:
        part: The needed part of the upright image.
        steps: For each stage the part that it gets, None for all, and what it does with it, None for nothing.
        scale: The part is wanted at 1/scale if a decoder makes that; all its numbers are multiples of `scale`.
        moves: What happens to everything else on the image's plane.
        size: (height, width) afterwards.
    """

    part: Box
    steps: tuple[tuple[Box | None, Step | None], ...]
    scale: int = 1
    moves: tuple[Move, ...] = ()
    size: tuple[int, int] = (0, 0)


class ImageColumn(NamedTuple):
    """An image of a row maker.

    Attributes:
        column: Its name in a record.
        out: Place of its field among the maker's.
        stages: Numbers of the stages that change it.
        landing: From this stage on, results have the row's shape and dtype, so they are written to the row itself.
        format: Its field.
    """

    column: str
    out: int
    stages: tuple[int, ...]
    landing: int
    format: RowField


class Follow(NamedTuple):
    """Columns of a row maker that follow the image together: a mask, or boxes and what there is for each of them.

    Attributes:
        column: The column whose kind says how; its name stands for all in messages.
        kinds: What the source gives, by column.
        outs: What is made of it: names of columns, and their places among the maker's fields.
    """

    column: str
    kinds: Record
    outs: tuple[tuple[str, int], ...]


class RowMaker:
    """Makes one view of rows by one pipeline: all that lies on an image's plane, moved by one draw, and changed values.

    Args:
        pipeline: What to do.
        view: Which of the pipeline's views; the first is the same as that of a pipeline with one view.
        begin: Stages that are done already: images and masks come as these leave them, from a cache.

    Attributes:
        fields: What it makes, in the order of the columns.
        images: The images among them; the ops decide by the size of the first one.
        followers: The others on its plane.
        boxes: Number of the follower whose boxes an op decides by; None for most pipelines.
        values: Those that lie on no plane and that ops make or change: column, and place among `fields`. They are made
            with the first view.
        takes_blocks: Whether it makes several samples at once in less time, by `make_block`: values only, no images.
        upright: Whether images must be turned by their EXIF orientation before they come here.
        max_pixels: Largest image that may be decoded, or come from a cache or as one of several.
        whole: Makes a row of a sample in one call, if it can; None for most pipelines.
        ops_ns: Time spent in each op of the pipeline, by place, since its reader set it to 0. What `whole` does in one
            call belongs to no op.
    """

    def __init__(self, pipeline: Pipeline, view: int = 0, begin: int = 0) -> None:
        self._view = view
        self._begin = begin
        self._stages = [
            stage_of(op, place) for place, op in enumerate(pipeline.ops) if place > 0 and not isinstance(op, ToLayout)
        ]
        changed = {name for stage in self._stages for name in stage.makes}
        self.fields = tuple(
            each for each in pipeline.fields if each.view == view and (each.kind.is_spatial or each.column in changed)
        )
        self.upright = pipeline.decode.exif_orientation
        self.max_pixels = pipeline.decode.max_pixels
        is_alone = len(self.fields) == 1 and isinstance(self.fields[0].kind, Image)
        self.whole: WholeCrop | None = whole_crop(pipeline, view) if is_alone else None
        last = pipeline.ops[-1]
        self._planar = isinstance(last, ToLayout) and last.layout == "CHW"
        self.ops_ns = [0] * len(pipeline.ops)
        self._names = [type(pipeline.ops[stage.place]).__name__ for stage in self._stages]
        images: list[ImageColumn] = []
        values: list[tuple[str, int]] = []
        kinds_after = self._kinds_after(pipeline)
        for out, each in enumerate(self.fields):
            if not each.kind.is_spatial:
                values.append((each.column, out))
                continue
            if not isinstance(each.kind, Image):
                continue
            stages = tuple(k for k, stage in enumerate(self._stages) if stage.column in (None, each.column))
            landing = max((k for k in stages if self._stages[k].settles), default=0)
            images.append(ImageColumn(each.column, out, stages, landing, each))
        self.images, self.values = tuple(images), tuple(values)
        self.followers = self._follows(pipeline.columns)
        sees = any(stage.sees_boxes for stage in self._stages)
        numbers = [n for n, each in enumerate(self.followers) if isinstance(each.kinds[each.column], Boxes)]
        self.boxes = numbers[0] if sees else None
        self.takes_blocks = any(stage.takes_blocks for stage in self._stages) and not (images or self.followers)
        self._making = [
            (stage, after)
            for stage, after in zip(self._stages, kinds_after, strict=False)
            if any(not after[name].is_spatial for name in stage.makes)
        ]
        # An op that follows the sample's size must not blow it up: a sliver of 1 x 60000 pixels, resized to a shorter
        # side of 1000, would take 180 GB.
        row_pixels = max((prod(each.shape) for each in self.fields), default=0)  # times channels: need not be exact
        self._step_limit = max(self.max_pixels, DEFAULT_MAX_PIXELS, row_pixels)
        if begin:
            self.max_pixels = self._step_limit  # its images are what ops have made
        self._step_limit_bytes = max(_STEP_LIMIT_BYTES, 0, *(each.nbytes for each in self.fields))
        self._pixel_bytes = []  # after each stage
        for record in kinds_after:
            kinds = [kind for kind in record.values() if isinstance(kind, Image)]
            self._pixel_bytes.append(max((k.channels * np.dtype(k.dtype).itemsize for k in kinds), default=1))

    def _follows(self, columns: Record) -> tuple[Follow, ...]:
        follows = []
        outs = [(each.column, out, each.kind) for out, each in enumerate(self.fields) if each.kind.is_spatial]
        for column, kind in columns.items():
            if not isinstance(kind, Spatial) or isinstance(kind, Image) or kind.is_per_box:
                continue
            beside = isinstance(kind, Boxes)
            given = {name: k for name, k in columns.items() if name == column or (beside and k.is_per_box)}
            made = tuple((name, out) for name, out, k in outs if name == column or (beside and k.is_per_box))
            follows.append(Follow(column, given, made))
        return tuple(follows)

    @staticmethod
    def _kinds_after(pipeline: Pipeline) -> list[Record]:
        """What is known of a record after each stage."""
        record: Record = with_index(pipeline.columns)
        return [record := op.after(record) for op in pipeline.ops[1:]]

    @property
    def row(self) -> RowField:
        """The field of its first image."""
        return self.images[0].format

    def most_scale(self, height: int, width: int) -> int:
        """Return the greatest scale of any plan for an image of `height` x `width`."""
        return self._stages[0].most_scale(height, width) if self._stages and not self._begin else 1

    def plan(
        self, height: int, width: int, key: SampleKey, objects: Objects | None = None, end: int | None = None
    ) -> Plan:
        """Draw the random parameters for an upright image of `height` x `width`.

        Args:
            height: In pixels.
            width: In pixels.
            key: What the random numbers hang on.
            objects: The sample's boxes, for a maker with `boxes`.
            end: Plan only the stages before this one.

        Raises:
            BadSample: The image is too large, or too small for an op.
        """
        if height * width > self.max_pixels:
            raise BadSample(f"{height}x{width} pixels are more than max_pixels={self.max_pixels}")
        part, scale = Box(0, 0, height, width), 1
        steps: list[tuple[Box | None, Step | None]] = [(None, None)] * self._begin
        moves: tuple[Move, ...] = ()
        mirrored: Step | None = None  # the previous step with this stage's flip included
        for number, stage in enumerate(self._stages[self._begin : end], self._begin):
            seen = objects.after(moves) if stage.sees_boxes and objects is not None else None
            drawn = self._decided(stage, (height, width), seen, key)
            height, width = drawn.height, drawn.width
            if height * width > self._step_limit:
                raise BadSample(f"would become {height}x{width} pixels on the way, more than {self._step_limit}")
            if (nbytes := height * width * self._pixel_bytes[number]) > self._step_limit_bytes:
                raise BadSample(
                    f"would take {nbytes >> 20} MiB as {height}x{width} pixels on the way, more than "
                    f"{self._step_limit_bytes >> 20} MiB: crop or resize before ToDtype"
                )
            moves += drawn.moves
            if stage.mirrors and drawn.step is not None and mirrored is not None:
                steps[-1] = steps[-1][0], mirrored
                drawn = _NOTHING
            if number == 0:
                part, scale = drawn.part or part, drawn.scale
                steps.append((None, drawn.step))
            else:
                steps.append((drawn.part, drawn.step))
            mirrored = drawn.mirrored
        return Plan(part, tuple(steps), scale, moves, (height, width))

    def _decided(self, stage: Stage, size: Size, objects: Objects | None, key: SampleKey) -> Drawn:
        draws = Draws(key, stage.place, self._view)
        return stage.draw(*size, draws) if objects is None else stage.draw_by(objects, draws)

    def follow(self, number: int, follower: Follower, size: Size, plan: Plan, outs: Sequence[Array]) -> None:
        """Carry out the plan for one of `followers`.

        Args:
            number: Its place there.
            follower: A sample's value.
            size: (height, width) of the plane before the plan.
            plan: From `plan`, for this sample.
            outs: The rows of the maker's fields.

        Raises:
            BadSample: The value cannot be decoded.
        """
        follower.make(size, plan.moves, {name: outs[out] for name, out in self.followers[number].outs})

    def render(self, plan: Plan, image: Array, out: Array, column: ImageColumn | None = None) -> None:
        """Carry out the plan for one image.

        Args:
            plan: From `plan`, for this image.
            image: `plan.part` of the upright image: uint8 RGB of that height and width, or of these over
                `plan.scale`. Not written to.
            out: The row: an array of the column's shape and dtype.
            column: Of `images`; None for the first one.

        Raises:
            ValueError: `out` is of another shape or dtype.
        """
        column = column or self.images[0]
        row = column.format
        if out.shape != row.shape or out.dtype != row.dtype:
            raise ValueError(f"the row is {row.shape} {row.dtype}, not {out.shape} {out.dtype}")
        target: Array = out.transpose(1, 2, 0) if self._planar else out
        image = self.carried(plan, image, column, target)
        if image is not target:
            target[...] = image

    def carried(self, plan: Plan, image: Array, column: ImageColumn, target: Array | None = None) -> Array:
        """Carry out the plan for one image; the result lies in `target` or in any other memory, also the image's."""
        number, since_ns = 0, time.monotonic_ns()
        try:
            for number in column.stages:
                if number >= len(plan.steps):
                    break
                part, step = plan.steps[number]
                if part is not None:
                    image = part.of(image)
                if step is not None:
                    image = step(image, target if number >= column.landing else None)
                    now_ns = time.monotonic_ns()
                    self.ops_ns[self._stages[number].place] += now_ns - since_ns
                    since_ns = now_ns
        except Exception as e:
            e.add_note(f"in {self._names[number]}")
            raise
        return image

    def make_values(self, sample: Mapping[str, Any], key: SampleKey, outs: Sequence[Array]) -> None:
        """Make all `values` of a sample.

        Args:
            sample: As its source gives it.
            key: What the random numbers hang on.
            outs: The rows of the maker's fields.

        Raises:
            BadSample: An op cannot use a value.
        """
        self.make_block([sample], [key], [outs])

    def make_block(
        self, samples: Sequence[Mapping[str, Any]], keys: Sequence[SampleKey], outs: Sequence[Sequence[Array]]
    ) -> None:
        """As `make_values`, for several samples; each gives the same as alone.

        Raises:
            BadSample: An op cannot use a value of at least one.
        """
        block = [dict(sample) for sample in samples]
        for stage, after in self._making:
            since_ns = time.monotonic_ns()
            stage.make_block(block, after, [Draws(key, stage.place, self._view) for key in keys])
            self.ops_ns[stage.place] += time.monotonic_ns() - since_ns
        for values, rows in zip(block, outs, strict=True):
            for column, out in self.values:
                rows[out][...] = values[column]


def row_makers(pipeline: Pipeline, begin: int = 0) -> tuple[RowMaker, ...]:
    """Return a maker for each view of a pipeline, from a stage on."""
    return tuple(RowMaker(pipeline, view, begin) for view in range(pipeline.views))
