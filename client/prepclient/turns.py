"""One thread at a time in a client: threads may take turns, but two at once are an error.

It uses no lock: after the call that releases it, a signal handler could raise and lose the batch in hand. Signal
handlers run, and threads switch, only after calls and at jumps, so a plain store is atomic.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="Turns")


class Turn:
    """One use of an object."""

    __slots__ = ("is_over", "then", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        # Whether it has ended. The `try` around it sets this on the line of its `return`, and at once in its handler.
        self.is_over = False
        # The use after this one, stored under the key None. `setdefault` is atomic, so of several threads only one
        # becomes the next.
        self.then: dict[None, Turn] = {}


class Turns:
    """An object that one thread at a time may use."""

    def __init__(self) -> None:
        self._last = Turn()
        self._last.is_over = True

    def _take(self, mine: Turn) -> None:
        """Begins a use, or continues one of this thread; raises `RuntimeError` if another thread uses the object."""
        turn = self._last
        while turn is not mine:
            if turn.is_over or not turn.thread.is_alive():  # other threads do not exist in a forked child
                turn = turn.then.setdefault(None, mine)
            elif turn.thread is mine.thread:
                return
            else:
                raise RuntimeError(
                    "this PrepClient is used by two threads at once: another one is inside next(), iter() or close(). "
                    "Make one for each thread (they share the daemon's work), or put a lock around its use"
                )
        self._last = mine


def in_turn(do: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """A method during which no other thread may use the object."""

    @functools.wraps(do)
    def use(self: C, /, *arguments: P.args, **more: P.kwargs) -> T:
        turn = Turn()
        try:
            self._take(turn)
            found = do(self, *arguments, **more)
            turn.is_over = True; return found  # noqa: E702  # fmt: skip
        except BaseException:
            turn.is_over = True; raise  # noqa: E702  # fmt: skip

    return use
