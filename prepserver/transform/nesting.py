"""What the stages of ops that hold ops share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from prepserver.pipeline.nested import Nesting
from prepserver.transform.chance import in_turn
from prepserver.transform.stage import Drawn, Draws, Stage

NestingT = TypeVar("NestingT", bound=Nesting)

_NOT_FIRST = 0
"""Place of the stages within: they never get an image that is decoded at a smaller scale."""


class NestingStage(Stage[NestingT]):
    """Stages within a stage; all take their random numbers from one sequence."""

    def __init__(self, op: NestingT, place: int) -> None:
        from prepserver.transform.ops import stage_of  # the registry imports its members, which import this module

        super().__init__(op, place)
        self._inner = [stage_of(each, _NOT_FIRST) for each in op.transforms]

    def _all(self, stages: Iterable[Stage[Any]], height: int, width: int, draws: Draws) -> Drawn:
        decisions: list[Drawn] = []
        size = height, width
        for stage in stages:
            decisions.append(stage.draw(*size, draws))
            size = decisions[-1].height, decisions[-1].width
        return in_turn(decisions, height, width)
