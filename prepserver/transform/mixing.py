"""Rows of several samples: the ops up to one that mixes are done to each sample, the ops after it to what it makes.

Which samples those are follows from the row's own sample, its pass and view: a row stays a pure function of its
position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prepserver.pipeline.kinds import Size
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.random_words import SampleKey
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.objects import Objects
from prepserver.transform.rowmaker import ImageColumn, Plan, RowMaker
from prepserver.transform.rows import NextTarget, make_rows
from prepserver.transform.stage import Array, Drawn, Draws, Mix, MixStage, Part, Stage


class PartMaker(RowMaker):
    """Makes the parts of one view, as `RowMaker`: what the ops up to the one that mixes leave of a sample."""

    def __init__(self, pipeline: Pipeline, view: int, begin: int) -> None:
        super().__init__(pipeline, view, begin)
        self._at = mixing_place(pipeline) - 1  # among the stages
        self.values, self.whole = (), None
        self.images = tuple(each._replace(size=None) for each in self.images)
        stage = self._stages[self._at]
        assert isinstance(stage, MixStage)
        self._stage = stage
        self._made: Part = {}

    def mix(self, samples: int, key: SampleKey) -> Mix:
        """Return what is decided for a row."""
        return self._stage.mix(samples, Draws(key, self._stage.place, self._view))

    def part(self, record: Mapping[str, Any], key: SampleKey, number: int, mix: Mix, step: NextTarget) -> Part:
        """Return a part of a row, `step` as for `make_rows`; raises `BadSample` if it is bad for this pipeline."""
        height, width = mix.canvas
        if height * width > self._step_limit:
            reason = f"would become {height}x{width} pixels on the way, more than {self._step_limit}"
            raise BadSample(reason, {0: reason})
        self._number, self._mix, self._made = number, mix, {}
        make_rows(record, key, [(self, [np.empty(0)] * len(self.fields))], step)
        return self._made

    def joined(self, parts: Sequence[Part], mix: Mix) -> Part:
        """Return all parts as one."""
        return self._stage.joined(parts, mix, [image.column for image in self.images], self.followers)

    # `make_rows` calls these.

    def plan(
        self, height: int, width: int, key: SampleKey, objects: Objects | None = None, end: int | None = None,
        column: ImageColumn | None = None,
    ) -> Plan:  # fmt: skip
        """As `RowMaker.plan`, up to the stage that mixes."""
        return super().plan(height, width, key, objects, self._at + 1)

    def _decided(self, stage: Stage[Any], size: Size, objects: Objects | None, key: SampleKey) -> Drawn:
        if isinstance(stage, MixStage):
            return stage.draw_part(*size, self._number, self._mix)
        return super()._decided(stage, size, objects, key)

    def render(self, plan: Plan, image: Array, out: Array, column: ImageColumn | None = None) -> None:
        """Keep the pixels; `out` is not used."""
        column = column or self.images[0]
        self._made[column.column] = np.array(self.carried(plan, image, column))  # the decoder uses its buffer again

    def follow(self, number: int, follower: Follower, size: Size, plan: Plan, outs: Sequence[Array]) -> None:
        """Keep the values; `outs` is not used."""
        self._made |= follower.moved(size, plan.moves)


def mixing_place(pipeline: Pipeline) -> int:
    """Return the place of the op that mixes; 0 if there is none."""
    return next((place for place, op in enumerate(pipeline.ops) if op.partners), 0)


class Mixer(NamedTuple):
    """Makes one view of rows of several samples."""

    parts: PartMaker  # makes parts of samples as they are stored
    headed: PartMaker  # makes parts of samples from a cache, with the head of the pipeline done
    tail: RowMaker  # makes the row of what the parts make together


def mixers(pipeline: Pipeline, head: int) -> tuple[Mixer, ...]:
    """Return a mixer for each view of a pipeline whose head has `head` ops; none if no op mixes samples."""
    place = mixing_place(pipeline)
    return tuple(
        Mixer(PartMaker(pipeline, view, 0), PartMaker(pipeline, view, head), RowMaker(pipeline, view, place))
        for view in range(pipeline.views if place else 0)
    )
