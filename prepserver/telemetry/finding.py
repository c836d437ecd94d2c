"""What a verdict on a job says, and how its figures are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prepserver.telemetry.facts import Facts

Kind = Literal["not enough data", "healthy", "compute-bound", "data-bound", "copy-bound", "host-CPU-bound"]
FINE: tuple[Kind, ...] = ("not enough data", "healthy", "compute-bound")  # verdicts that ask for nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a job."""

    kind: Kind  # the verdict
    # What exactly: stages (``read``, ``decode``, ``op NAME``), ``workers``, ``job NAME``, ``ranks``, ``joining``,
    # ``bad samples``, ``dying workers``,
    # ``ring``, ``bursts``, ``cache``, ``other streams``, ``inline``, ``loop``, ``cores``, ``copy``;
    # the main one first.
    causes: tuple[str, ...] = ()
    why: str = ""  # the evidence in figures
    next: str = ""  # what to do, with its expected effect; empty if there is nothing to do
    lost: float = 0.0  # fraction of the loop's time that it costs
    also: tuple[str, ...] = ()  # smaller findings, as `title`

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing to do."""
        return self.kind in FINE

    @property
    def title(self) -> str:
        """The verdict in a few words."""
        return f"{self.kind} ({', '.join(self.causes)})" if self.causes else self.kind

    def to_plain(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return {
            "verdict": self.title, "kind": self.kind, "causes": list(self.causes), "why": self.why, "next": self.next,
            "is_fine": self.is_fine, "lost_fraction": round(self.lost, 3), "also": list(self.also),
        }  # fmt: skip


def workers_are_busy(count: int) -> str:
    """The beginning of a sentence, before how much of the time."""
    return "the only worker is busy" if count == 1 else f"all {count} workers are busy"


def up_to(facts: Facts, per_s: float) -> str:
    """An expected rate, absolute and relative to the current one."""
    if facts.images_per_s <= 0:
        return "a higher rate"
    return f"up to {rate(per_s)}, {per_s / facts.images_per_s:.1f}x"


def rate(per_s: float) -> str:
    """Images per second."""
    return f"{per_s:,.0f} samples/s" if per_s >= 10 else f"{per_s:.1f} samples/s"


def percent(fraction: float) -> str:
    """A fraction in per cent."""
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 or fraction <= 0 else "under 1 %"
