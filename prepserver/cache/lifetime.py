"""Decides how large each cache may grow, and which unused caches end with time or for lack of memory. Pure.

No entry is evicted for another one: each epoch needs each sample once, so all entries are worth the same. A whole cache
ends when no job has read its dataset for a while, or sooner if memory is short. `prepserver.daemon.caches` also ends
unused caches if there are too many or a ring needs the memory; `prepserver.cache.folder` removes unused files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

KEPT_S = 600.0
"""How long an unused cache is kept: long enough for the next run of a script, or the next validation."""

_SHORT = 16  # memory is short if less than this fraction of the budget (1 / `_SHORT`) is free


class Use(NamedTuple):
    """One cache."""

    id: int  # its number
    nbytes: int  # its size now
    idle_s: float | None  # for how long no job has used it; None if one does


def allowances(uses: Sequence[Use], budget_bytes: int, free_bytes: int) -> dict[int, int]:
    """Return the bytes that each cache may have: its size now, and for one in use an equal share of the free bytes.

    The budget is for all caches together; `free_bytes` is the memory that the machine has left.
    """
    free = max(0, min(budget_bytes - sum(use.nbytes for use in uses), free_bytes))
    growing = [use for use in uses if use.idle_s is None]
    return {use.id: use.nbytes + (free // len(growing) if use in growing else 0) for use in uses}


def ended(uses: Sequence[Use], budget_bytes: int, free_bytes: int) -> list[int]:
    """Return the caches that end now: those idle for too long, or, if memory is short, the one idle longest."""
    idle = sorted((use for use in uses if use.idle_s is not None), key=lambda use: -(use.idle_s or 0.0))
    old = [use.id for use in idle if (use.idle_s or 0.0) > KEPT_S]
    if old or not idle:
        return old
    in_budget = budget_bytes - sum(use.nbytes for use in uses)
    is_short = free_bytes <= 0 or (in_budget < budget_bytes // _SHORT and len(idle) < len(uses))
    return [idle[0].id] if is_short else []
