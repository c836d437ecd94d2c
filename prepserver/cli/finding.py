"""One thing that `prepserver doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["ok", "slow", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What.
        severity: ``ok``; ``slow`` if prepserver works, but slower or less safely than it could; ``broken`` if it
            cannot work.
        text: What was found.
        fix: What to do about it; empty if nothing.
        figures: What was measured, for machines.
    """

    name: str
    severity: Severity
    text: str
    fix: str = ""
    figures: dict[str, float] = field(default_factory=dict)
