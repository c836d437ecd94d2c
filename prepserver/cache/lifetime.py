"""How large each cache may grow, and which ones end. Pure.

An entry is never thrown out for another one: each epoch needs each sample once, so what is kept is worth as much as
what would take its place. A whole cache ends when no job has read its dataset for a while, or sooner if memory is
short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

KEPT_S = 600.0
"""How long a cache is kept that no job uses: between two runs of a script, or two epochs that are validated."""

_SHORT = 16
"""Less than this part of the budget free is short of memory."""


class Use(NamedTuple):
    """One cache."""

    id: int  # its number
    nbytes: int  # its size now
    idle_s: float | None  # for how long no job has used it; None if one does


def allowances(uses: Sequence[Use], budget_bytes: int, free_bytes: int) -> dict[int, int]:
    """Return how many bytes each cache may have: what it has, and an equal share of what is free.

    The budget is for all together; `free_bytes` is what the machine has left.
    """
    free = max(0, min(budget_bytes - sum(use.nbytes for use in uses), free_bytes))
    growing = [use for use in uses if use.idle_s is None]
    return {use.id: use.nbytes + (free // len(growing) if use in growing else 0) for use in uses}


def ended(uses: Sequence[Use], budget_bytes: int, free_bytes: int) -> list[int]:
    """Return the caches that end now: those idle for long; if memory is short, also the one idle longest."""
    idle = sorted((use for use in uses if use.idle_s is not None), key=lambda use: -(use.idle_s or 0.0))
    old = [use.id for use in idle if (use.idle_s or 0.0) > KEPT_S]
    if old or not idle:
        return old
    in_budget = budget_bytes - sum(use.nbytes for use in uses)
    is_short = free_bytes <= 0 or (in_budget < budget_bytes // _SHORT and len(idle) < len(uses))
    return [idle[0].id] if is_short else []
