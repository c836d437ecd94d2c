"""How a job shares its rows with others: where it comes in, how long it waits for them, and they for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from prepclient.checks import invalid, seconds
from prepclient.errors import InvalidSpec
from prepserver.pipeline.checks import integer
from prepserver.pipeline.errors import SpecError
from prepserver.protocol.messages import lag_error

_JOIN_WAITS = 3  # so many times what was foreseen must fit into timeout_s


@dataclass(frozen=True, slots=True)
class Joining:
    """How a job joins the stream of rows that others read, and leaves it.

    Args:
        start: Where epoch 0 begins. With `shuffle` True an epoch has each sample once, but while other jobs run it
            starts wherever this job can join them: two runs with the same seed may then see different orders.
            ``"first"`` always begins at position 0 and shares only with jobs that stand there; later epochs follow
            from there. A number, as `PrepClient.stats` gives it as ``"start"``, begins where another run did. Where no
            epoch can begin in this order, the first use refuses it and names the next number that can be; with
            shards, or ranks on other machines, 0 is the only one. ``"any"`` joins wherever it can. None is ``"first"``
            where ``torch.use_deterministic_algorithms`` is on, else ``"any"``.
        wait_s: The longest wait for a running stream before this job takes a separate one for good. The first batches
            come at once all the same; the wait comes after them. 0 never waits; more than a third of `timeout_s`
            counts as that.
        lag: What happens when this job is slower than those that it shares with: ``"wait"`` (they wait for it),
            ``"detach"`` (it goes on with a stream of its own, the same bytes), ``"auto"`` (detach while workers are
            idle, else wait). Jobs of other users never wait for it: it goes on with a stream of its own.

    Raises:
        InvalidSpec: A value that cannot be.
    """

    start: Literal["any", "first"] | int | None = None
    wait_s: float = 30.0
    lag: Literal["auto", "wait", "detach"] = "auto"

    def __post_init__(self) -> None:
        if (wrong := lag_error(self.lag)) is not None:
            raise InvalidSpec(wrong, "lag")
        object.__setattr__(self, "wait_s", seconds("wait_s", self.wait_s))
        if self.start not in (None, "any", "first"):
            try:
                object.__setattr__(self, "start", integer("start", self.start, -(2**62), 2**62))
            except SpecError as e:
                allowed = "'any', 'first', or a position, as stats()['start'] has it"
                raise invalid("start", self.start, allowed) from e

    @property
    def first(self) -> int | None:
        """The position at which epoch 0 begins; None for any."""
        if self.start == "first" or (self.start is None and torch.are_deterministic_algorithms_enabled()):
            return 0
        return self.start if isinstance(self.start, int) else None

    def longest_wait_s(self, timeout_s: float) -> float:
        """The longest foreseen wait for a shared stream, which ends in a batch and not in `BatchTimeout`.

        The daemon ends it where it lasts twice as long.
        """
        return min(self.wait_s, timeout_s / _JOIN_WAITS)
