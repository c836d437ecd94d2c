"""A pipeline made ready to run: plan (sizes and random numbers), then render pixels into a row.

Planning needs only a header and says how much of the image is needed, so that decoding can stop there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from prepserver.pipeline.kinds import Boxes, Image, Kind, Mask, Size, Spatial
from prepserver.pipeline.ops.decode import DEFAULT_MAX_PIXELS
from prepserver.pipeline.ops.only import Only
from prepserver.pipeline.ops.to_layout import ToLayout
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.random_words import SampleKey
from prepserver.pipeline.record import Columns, RowField, with_index
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.moves import COLUMNS, Move
from prepserver.transform.objects import Objects
from prepserver.transform.ops import stage_of
from prepserver.transform.ops.only import OnlyStage
from prepserver.transform.stage import Array, Box, Drawn, Draws, Follow, Stage, Step
from prepserver.transform.whole import WholeCrop, whole_crop

_NOTHING = Drawn(None, 0, 0)

_STEP_LIMIT_BYTES = 1 << 30
"""For the result of one step. With the default `max_pixels` every sample keeps within it (64 megapixels of float32 are
732 MiB); it stops a pipeline with a larger one from taking gigabytes for a whole image of floats."""


class Plan(NamedTuple):
    """What one maker will do with one sample."""

    part: Box  # the needed part of the upright image
    # For each stage the part that it gets, None for all, and what it does with it, None for nothing.
    steps: tuple[tuple[Box | None, Step | None], ...]
    scale: int = 1  # the part is wanted at 1/scale if a decoder makes that; all its numbers are multiples of `scale`
    moves: tuple[Move, ...] = ()  # what happens to everything else on the image's plane
    size: tuple[int, int] = (0, 0)  # (height, width) afterwards


class ImageColumn(NamedTuple):
    """An image of a row maker."""

    column: str  # its name in a record
    out: int  # place of its field among the maker's
    stages: tuple[int, ...]  # numbers of the stages that change it
    landing: int  # from this stage on, results have the row's shape and dtype, so they are written to the row itself
    declared: Image  # what its source declares
    size: Size | None  # (height, width) of the row; None if it is no row


class RowMaker:
    """Makes one view of rows by one pipeline: all that lies on an image's plane, moved by one draw, and changed values.

    Views count from 0. The stages before `begin` are done already: images and masks come as these leave them, from a
    cache.
    """

    def __init__(self, pipeline: Pipeline, view: int = 0, begin: int = 0) -> None:
        self._view = pipeline.numbers[view]
        self._begin = begin
        self._stages = _stages_of(pipeline)
        changed = {name for stage in self._stages for name in stage.makes}
        # The fields that it makes, in the order of the columns.
        self.fields = tuple(
            each for each in pipeline.fields if each.view == view and (each.kind.is_spatial or each.column in changed)
        )
        # Whether images must be turned by their EXIF orientation before they come here.
        self.upright = pipeline.decode.exif_orientation
        # Whether each image has a plan of its own, made by its own size; else all lie on one plane.
        self.apart = pipeline.apart
        # Largest image that may be decoded, or come from a cache or as one of several.
        self.max_pixels = pipeline.decode.max_pixels
        last = pipeline.ops[-1]
        self._planar = isinstance(last, ToLayout) and last.layout == "CHW"
        # Time spent in each op of the pipeline, by place, since its reader set it to 0. What `whole` does in one call
        # belongs to no op.
        self.ops_ns = [0] * len(pipeline.ops)
        # Those that lie on no plane and that ops make or change: column, and place among `fields`. They are made with
        # the first view.
        self.values = tuple((each.column, out) for out, each in enumerate(self.fields) if not each.kind.is_spatial)
        record: Columns = with_index(pipeline.columns)
        records = [record, *(record := op.after(record) for op in pipeline.ops[1:])]  # before and after each stage
        # The images among them; the ops decide by the size of the first one.
        self.images = tuple(
            self._image(out, each, pipeline, records)
            for out, each in enumerate(self.fields)
            if isinstance(each.kind, Image)
        )
        # Makes the image of a row in one call, if it can; None for most pipelines.
        can_be_whole = len(self.images) == 1 and self.images[0].declared.is_photo and not self._planar
        self.whole: WholeCrop | None = whole_crop(pipeline, self._view, self._stages) if can_be_whole else None
        self.followers = self._follows(pipeline.columns)  # the others on its plane
        # Whether those may be made after the images of other samples: they take little memory.
        has_mask = any(isinstance(kind, Mask) for each in self.followers for kind in each.kinds.values())
        self.can_wait = bool(self.followers) and not has_mask
        sees = any(stage.sees_boxes for stage in self._stages)
        numbers = [n for n, each in enumerate(self.followers) if isinstance(each.kinds[each.column], Boxes)]
        # Number of the follower whose boxes an op decides by; None for most pipelines.
        self.boxes = numbers[0] if sees else None
        # Whether `make_block` makes several samples faster than one by one: only without images.
        self.takes_blocks = any(stage.takes_blocks for stage in self._stages) and not (self.images or self.followers)
        self._making = [
            (stage, after)
            for stage, after in zip(self._stages, records[1:], strict=False)
            if any(not after[name].is_spatial for name in stage.makes)
        ]
        # An op that follows the sample's size must not blow it up: a sliver of 1 x 60000 pixels, resized to a shorter
        # side of 1000, would take 180 GB.
        row_pixels = max((prod(each.shape) for each in self.fields), default=0)  # times channels: need not be exact
        self._step_limit = max(self.max_pixels, DEFAULT_MAX_PIXELS, row_pixels)
        if begin:
            self.max_pixels = self._step_limit  # its images are what ops have made
        self._step_limit_bytes = max([_STEP_LIMIT_BYTES, *(each.nbytes for each in self.fields)])
        self._pixel_bytes = []  # after each stage
        for record in records[1:]:
            kinds = [kind for kind in record.values() if isinstance(kind, Image)]
            self._pixel_bytes.append(max((k.channels * np.dtype(k.dtype).itemsize for k in kinds), default=1))

    def _image(self, out: int, field: RowField, pipeline: Pipeline, records: Sequence[Columns]) -> ImageColumn:
        stages = tuple(k for k, stage in enumerate(self._stages) if stage.column in (None, field.column))

        def works_within_one_array(number: int) -> bool:
            op = pipeline.ops[number + 1]
            moves = op.moves_one or (op.moves and self._stages[number].axis is None)
            before, after = (_form(each[field.column]) for each in records[number : number + 2])
            return not moves and before == after

        landing = max((k for k in stages if not works_within_one_array(k)), default=0)
        declared, made = (each[field.column] for each in (records[0], records[-1]))
        assert isinstance(declared, Image)
        assert isinstance(made, Image)
        return ImageColumn(field.column, out, stages, landing, declared, made.size)

    def _follows(self, columns: Columns) -> tuple[Follow, ...]:
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

    def most_scale(self, height: int, width: int) -> int:
        """Return the greatest scale of any plan for an image of `height` x `width`."""
        return self._stages[0].most_scale(height, width) if self._stages and not self._begin else 1

    def plan(
        self, height: int, width: int, key: SampleKey, objects: Objects | None = None, end: int | None = None,
        column: ImageColumn | None = None,
    ) -> Plan:  # fmt: skip
        """Draw the random parameters, which depend on `key`, for an upright image of `height` x `width` pixels.

        `objects` are the sample's boxes, for a maker with `boxes`. Only the stages before `end` are planned, and only
        those of the image `column`, if it is not None: that stands for what lies on one plane.

        Raises:
            BadSample: The image is too large, or too small for an op.
        """
        if height * width > self.max_pixels:
            raise BadSample(f"{height}x{width} pixels are more than max_pixels={self.max_pixels}")
        part, scale = Box(0, 0, height, width), 1
        first = 0 if column is None or not column.stages else column.stages[0]
        steps: list[tuple[Box | None, Step | None]] = [(None, None)] * self._begin
        moves: tuple[Move, ...] = ()
        mirrored: Step | None = None  # the previous step with this stage's flip included
        for number, stage in enumerate(self._stages[self._begin : end], self._begin):
            if column is not None and number not in column.stages:
                steps.append((None, None))
                mirrored = None
                continue
            seen = objects.after(moves) if stage.sees_boxes and objects is not None else None
            drawn = stage.filling(self._decided(stage, (height, width), seen, key))
            height, width = drawn.height, drawn.width
            if height * width > self._step_limit:
                raise BadSample(f"would become {height}x{width} pixels on the way, more than {self._step_limit}")
            if (nbytes := height * width * self._pixel_bytes[number]) > self._step_limit_bytes:
                raise BadSample(
                    f"would take {nbytes >> 20} MiB as {height}x{width} pixels on the way, more than "
                    f"{self._step_limit_bytes >> 20} MiB: crop first, and put ToDtype last"
                )
            moves += drawn.moves
            if stage.axis == COLUMNS and drawn.step is not None and mirrored is not None:
                steps[-1] = steps[-1][0], mirrored
                drawn = _NOTHING
            if number == first:
                part, scale = drawn.part or part, drawn.scale
                steps.append((None, drawn.step))
            else:
                steps.append((drawn.part, drawn.step))
            mirrored = drawn.mirrored
        return Plan(part, tuple(steps), scale, moves, (height, width))

    def _decided(self, stage: Stage[Any], size: Size, objects: Objects | None, key: SampleKey) -> Drawn:
        draws = Draws(key, stage.place, self._view)
        return stage.draw(*size, draws) if objects is None else stage.draw_by(objects, draws)

    def follow(self, number: int, follower: Follower, size: Size, plan: Plan, outs: Sequence[Array]) -> None:
        """Carry out a sample's plan for the follower with this number among `followers`.

        `size` is the (height, width) of the plane before the plan, and `outs` are the rows of the maker's fields.

        Raises:
            BadSample: The value cannot be decoded.
        """
        follower.make(size, plan.moves, {name: outs[out] for name, out in self.followers[number].outs})

    def render(self, plan: Plan, image: Array, out: Array, column: ImageColumn | None = None) -> None:
        """Carry out the plan for one image: of `images`, by default the first one.

        `image` is `plan.part` of the upright image: pixels of that height and width, or of these over `plan.scale`. It
        is not written to. `out` is the row: an array of the column's shape and dtype.

        Raises:
            ValueError: `out` is of another shape or dtype.
        """
        column = column or self.images[0]
        row = self.fields[column.out]
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
            e.add_note(f"in {type(self._stages[number]).__name__.removesuffix('Stage')}")
            raise
        return image

    def make_block(
        self, samples: Sequence[Mapping[str, Any]], keys: Sequence[SampleKey], outs: Sequence[Sequence[Array]]
    ) -> None:
        """Make all `values` of some samples, as their source gives them, the same of each as if it were alone.

        `keys` are what the random numbers of each depend on, and `outs` the rows of the maker's fields for each.

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


def _stages_of(pipeline: Pipeline) -> list[Stage[Any]]:
    stages: list[Stage[Any]] = []
    for place, op in enumerate(pipeline.ops):
        if isinstance(op, Only):
            stages.append(OnlyStage(op, place, all(each.column not in (None, op.column) for each in stages)))
        elif place > 0 and not isinstance(op, ToLayout):
            stages.append(stage_of(op, place))
    return stages


def _form(kind: Kind) -> object:
    """Return what an array of pixels must have in common with another one to lie in the same memory."""
    return (kind.size, kind.channels, kind.dtype) if isinstance(kind, Image) else None


def row_makers(pipeline: Pipeline, begin: int = 0) -> tuple[RowMaker, ...]:
    """Return a maker for each view of a pipeline, from a stage on."""
    return tuple(RowMaker(pipeline, view, begin) for view in range(pipeline.views))
