"""Passes events to the coordinator, and its actions to the one that carries them out.

Whoever in the daemon hears of something (`clients`, `pool`, `reports`, ...) knows this module and nothing above it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from prepserver.daemon import awake
from prepserver.schedule.actions import Action
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import Event


@dataclass(slots=True, eq=False)
class Driver:
    """Handles events one at a time; those that the actions cause come after all actions."""

    coordinator: Coordinator
    clock: Callable[[], float] = awake.now_s
    # Carries out one action and returns the event that answers it, if one does; set before the first event.
    carry_out: Callable[[Action], Event | None] = field(init=False)
    _events: deque[Event] = field(default_factory=deque, init=False)
    _is_busy: bool = field(default=False, init=False)

    def happened(self, event: Event) -> None:
        """Handles an event, after all earlier ones."""
        self._events.append(event)
        if self._is_busy:
            return  # an action of the current event has caused this one, which is handled next
        self._is_busy = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._is_busy = False

    def _handle(self, event: Event) -> None:
        now: Event | None = event
        failed: Exception | None = None
        while now is not None:
            decided, now = self.coordinator.handle(now, self.clock()), None
            for action in itertools.chain(decided, self.coordinator.later()):
                try:
                    now = self.carry_out(action)
                except Exception as e:  # noqa: BLE001 - the other actions follow: the table contains them already
                    failed = failed or e
        if failed is not None:
            raise failed
