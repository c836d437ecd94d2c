"""How a job shares a stream with others: where it begins, and which job waits for which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from prepclient.checks import MOST_S
from prepclient.errors import InvalidSpec
from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.errors import SpecError
from prepserver.protocol.messages import lag_error

_JOIN_WAITS = 3  # `timeout_s` must have room for this many times the expected wait


@dataclass(frozen=True, slots=True)
class Joining:
    """How a job shares a stream of rows with other jobs: where it joins, and which job waits.

    Args:
        start: Where epoch 0 begins. With ``shuffle=True`` an epoch has each sample once, but it begins wherever this
            job can join a stream that other jobs read, so two runs with the same seed may see different orders.

            - ``"any"`` joins wherever it can.
            - ``"first"`` begins at position 0, so the order is the same in every run. The job shares rows only with
              jobs that are at that position.
            - A number begins where another run did: ``"start"`` of its `PrepClient.stats`. If no epoch can begin there,
              the first use raises `InvalidSpec`, which names the next number that works. With shards, or ranks on
              several machines, only 0 works.
            - None is ``"first"`` if ``torch.use_deterministic_algorithms`` is on, else ``"any"``.
        wait_s: Longest wait in seconds for a running stream, after which this job takes a separate one for good. The
            first batches come before the wait. 0 never waits. At most a third of `timeout_s` counts.
        lag: What happens when this job is slower than the jobs that share its stream. ``"wait"``: they wait for it.
            ``"detach"``: it continues in a separate stream with the same bytes. ``"auto"``: it detaches while workers
            are idle; otherwise they wait. Jobs of other users never wait: for them ``"wait"`` means ``"detach"``.

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
                allowed = "must be 'any', 'first', or a position such as stats()['start']"
                raise SpecError("start", self.start, allowed) from None

    @property
    def first(self) -> int | None:
        """The position at which epoch 0 must begin; None for any."""
        if self.start == "first" or (self.start is None and torch.are_deterministic_algorithms_enabled()):
            return 0
        return self.start if isinstance(self.start, int) else None

    def longest_wait_s(self, timeout_s: float) -> float:
        """The longest wait that the daemon may expect for a shared stream; it ends one that takes twice as long."""
        return min(self.wait_s, timeout_s / _JOIN_WAITS)
