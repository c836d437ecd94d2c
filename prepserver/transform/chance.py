"""Shared by random stages: acting with a probability, several decisions in turn, ops within ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import ChanceOp
from prepserver.transform.stage import NOT_FIRST, Array, Drawn, Draws, Stage, delivered
from prepserver.transform.tones import Change

ChanceT = TypeVar("ChanceT", bound=ChanceOp)
NestingT = TypeVar("NestingT", bound=Nesting)


class ChanceStage(Stage[ChanceT]):
    """A stage that acts with probability ``p``: override `chosen`, or `change` for a change of values without draws."""

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return self.chosen(height, width, draws) if draws.uniform() < self._op.p else Drawn(None, height, width)

    def chosen(self, height: int, width: int, draws: Draws) -> Drawn:
        """Decide as `Stage.draw`, for a sample to which it happens."""
        return changing([self.change], height, width)

    def change(self, image: Array) -> Array:
        """Return an image with its values changed; may return its input."""
        raise NotImplementedError


def changing(changes: Sequence[Change], height: int, width: int) -> Drawn:
    """Return the decision to make some changes of values, one after another."""
    return Drawn(partial(_changed, changes) if changes else None, height, width)


def _changed(changes: Sequence[Change], image: Array, into: Array | None) -> Array:
    for change in changes:
        image = change(image)
    return delivered(image, into)


def shuffled(count: int, draws: Draws) -> list[int]:
    """Return the numbers from 0 in random order (Fisher-Yates)."""
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = draws.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def in_turn(decisions: Sequence[Drawn], height: int, width: int) -> Drawn:
    """Return several decisions as one; `height` and `width` are those before all of them."""
    moves = tuple(move for each in decisions for move in each.moves)
    kept = [each for each in decisions if each.step is not None or each.part is not None]
    if not kept:
        return Drawn(None, height, width, moves=moves)
    steps = [kept[0]._replace(part=None), *kept[1:]]
    return Drawn(partial(_all_of, steps), decisions[-1].height, decisions[-1].width, kept[0].part, moves=moves)


def _all_of(decisions: Sequence[Drawn], image: Array, into: Array | None) -> Array:
    for place, decision in enumerate(decisions):
        if decision.part is not None:
            image = decision.part.of(image)
        if decision.step is not None:
            image = decision.step(image, into if place == len(decisions) - 1 else None)
    return image


class NestingStage(Stage[NestingT]):
    """Stages within a stage; all take their random numbers from one sequence."""

    def __init__(self, op: NestingT, place: int) -> None:
        from prepserver.transform.ops import stage_of  # the registry imports its members, which import this module

        super().__init__(op, place)
        self._inner = [stage_of(each, NOT_FIRST) for each in op.transforms]

    def _all(self, stages: Iterable[Stage[Any]], height: int, width: int, draws: Draws) -> Drawn:
        decisions: list[Drawn] = []
        size = height, width
        for stage in stages:
            decisions.append(stage.filling(stage.draw(*size, draws)))
            size = decisions[-1].height, decisions[-1].width
        return in_turn(decisions, height, width)
