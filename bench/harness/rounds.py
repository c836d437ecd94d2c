"""Figures of rounds: every cell is measured once per round, so that a slow minute of the machine meets all of them.

A cell is a dict of what was measured (``peer``, ``jobs``, ...) and its figures. Ratios are taken within a round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.tables import NO_TARGET, Sheet, reach, spread

Which = Mapping[str, Any]
"""Selects cells: those that have these values."""
Rounds = Sequence[Sequence[Mapping[str, Any]]]

NOISE_CORES, NOISE_PART = 0.1, 0.05
"""What other processes may use: so many cores, or this part of a cell's ``cores``. A driver's threads use some."""


def values(rounds: Rounds, figure: str, which: Which) -> list[Any]:
    """A figure of the cells that `which` selects, without those that lack it."""
    cells = [cell for each in rounds for cell in each if all(cell.get(key) == want for key, want in which.items())]
    return [cell[figure] for cell in cells if cell.get(figure) is not None]


def ratios(rounds: Rounds, figure: str, first: Which, second: Which) -> list[float]:
    """First / second, of each round that has both."""
    pairs = [[values([cells], figure, which) for which in (first, second)] for cells in rounds]
    return [a[0] / b[0] for a, b in pairs if a and b and b[0]]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure, or a ratio of one figure in two cells, and what the project wants it to be.

    Attributes:
        text: Names it in a table.
        figure: The key in a cell.
        first: The cell.
        second: What its figure is divided by; None for the figure itself.
        bound: The limit; None for a figure without a target.
        sign: ``>=`` or ``<=``.
    """

    text: str
    figure: str
    first: Which
    second: Which | None = None
    bound: float | None = None
    sign: str = ">="

    def found(self, rounds: Rounds) -> list[float]:
        """One value for each round that has it."""
        if self.second is None:
            return values(rounds, self.figure, self.first)
        return ratios(rounds, self.figure, self.first, self.second)

    def is_disturbed(self, rounds: Rounds) -> bool:
        """Whether other processes were at work while it was measured: then it proves nothing either way."""
        if self.figure in ("kb_per_image", "server_own_mib"):
            return False
        cells = [which for which in (self.first, self.second) if which is not None]
        return any(
            cell.get("others_cores", 0.0) > _quiet(cell) for each in rounds for cell in each
            if any(all(cell.get(key) == want for key, want in which.items()) for which in cells)
        )  # fmt: skip


def _quiet(cell: Mapping[str, Any]) -> float:
    return max(NOISE_CORES, NOISE_PART * float(cell.get("cores", 0)))


def target_sheet(title: str, rounds: Rounds, targets: Sequence[Target]) -> Sheet:
    """A line for each target that these rounds have figures for."""
    sheet = Sheet(title, ("figure", "found", "target", "reached"))
    for target in targets:
        if not (found := target.found(rounds)):
            continue
        middle = statistics.median(found)
        bound, reached = NO_TARGET if target.bound is None else reach(middle, target.sign, target.bound, ".3g")
        if target.bound is not None and target.is_disturbed(rounds):
            reached = "undecided: disturbed"
        sheet.rows.append((target.text, spread(found, ".0f" if middle >= 100 else ".2f"), bound, reached))
    return sheet


def disturbed(rounds: Rounds) -> list[str]:
    """A sentence, if other processes were at work on the machine."""
    cells = [cell for each in rounds for cell in each if cell.get("others_cores") is not None]
    noise = [cell["others_cores"] for cell in cells]
    limit = max(map(_quiet, cells), default=NOISE_CORES)
    if not (bad := sum(cell["others_cores"] > _quiet(cell) for cell in cells)):
        return []
    return [
        f"Disturbed: in {bad} of {len(noise)} windows other processes used more than {limit:g} cores "
        f"(at most {max(noise):.2f}). Rates and CPU seconds are provisional."
    ]
