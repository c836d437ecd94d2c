"""How a job shares a stream with others: where it begins, and which job waits how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from prepclient.checks import MOST_S
from prepclient.errors import InvalidSpec
from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.errors import SpecError
from prepserver.protocol.messages import lag_error

_JOIN_WAITS = 3  # this many times the expected wait must fit into timeout_s


@dataclass(frozen=True, slots=True)
class Joining:
    """How a job joins the stream of rows that others read, and leaves it.

    Args:
        start: Where epoch 0 begins. With `shuffle` True an epoch has each sample once, but while other jobs run it
            starts wherever this job can join them, so two runs with the same seed may see different orders.
            ``"first"`` always begins at position 0 and shares only with jobs that are there; later epochs follow. A
            number, such as ``"start"`` of `PrepClient.stats`, begins where another run did; if no epoch can begin
            there, the first use raises and names the next number that works. With shards, or ranks on other
            machines, only 0 works. ``"any"`` joins wherever it can. None is ``"first"`` if
            ``torch.use_deterministic_algorithms`` is on, else ``"any"``.
        wait_s: Longest wait for a running stream before this job takes a separate one for good. The first batches
            come at once, before the wait. 0 never waits; the most is a third of `timeout_s`.
        lag: What happens when this job is slower than the jobs that it shares with: ``"wait"`` (they wait for it),
            ``"detach"`` (it goes on in a separate stream with the same bytes), ``"auto"`` (detach while workers are
            idle, else wait). Jobs of other users never wait: for them ``"wait"`` means ``"detach"``.

    Raises:
        InvalidSpec: A value is invalid.
    """

    start: Literal["any", "first"] | int | None = None
    wait_s: float = 30.0
    lag: Literal["auto", "wait", "detach"] = "auto"

    def __post_init__(self) -> None:
        if (wrong := lag_error(self.lag)) is not None:
            raise InvalidSpec(wrong, "lag")
        object.__setattr__(self, "wait_s", number("wait_s", self.wait_s, 0.0, MOST_S))
        if self.start not in (None, "any", "first"):
            try:
                object.__setattr__(self, "start", integer("start", self.start, -(2**62), 2**62))
            except SpecError:
                allowed = "'any', 'first', or a position, as stats()['start'] has it"
                raise SpecError("start", self.start, allowed) from None

    @property
    def first(self) -> int | None:
        """The position at which epoch 0 begins; None for any."""
        if self.start == "first" or (self.start is None and torch.are_deterministic_algorithms_enabled()):
            return 0
        return self.start if isinstance(self.start, int) else None

    def longest_wait_s(self, timeout_s: float) -> float:
        """The longest expected wait for a shared stream; the daemon ends a wait that takes twice as long."""
        return min(self.wait_s, timeout_s / _JOIN_WAITS)
