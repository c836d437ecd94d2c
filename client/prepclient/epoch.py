"""The iterator over one epoch: what ``for batch in client`` takes its batches from."""

from __future__ import annotations

from typing import Any

from prepclient.errors import BadSampleError
from prepclient.loop import Loop
from prepclient.turns import Turn, Turns


class Epoch:
    """Iterates over the rest of one epoch, until the client has handed out `ends_at` batches in total.

    Iterators are numbered, because only the client's latest one works.
    """

    def __init__(self, client: Turns, loop: Loop, ends_at: int) -> None:
        self._client = client
        self._loop = loop
        self.begin_at(ends_at)
        self._began_at = self._loop.totals.batches
        self._ended = False

    @property
    def is_unread(self) -> bool:
        """Whether it is the client's latest iterator and nothing was taken from it."""
        return self._loop.iterators == self._number and self._loop.totals.batches == self._began_at

    def begin_at(self, ends_at: int) -> None:
        """Becomes the latest iterator, over another epoch. Only an unread iterator may."""
        self._number, self._ends_at = self._loop.iterators, ends_at

    def __del__(self) -> None:
        """The loop has dropped it, perhaps early: from here on, `len` of the client is that of the next epoch."""
        if self._loop.iterators == self._number:
            self._loop.headspace.end_epoch()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Number of batches that are left."""
        return 0 if self._ended else self._of_stream + self._loop.headspace.left

    @property
    def _of_stream(self) -> int:
        return max(0, self._ends_at - self._loop.totals.batches)

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: The epoch has ended.
            RuntimeError: The client was iterated, closed or moved after this iterator was made.
            BadSampleError: Takes the place of a batch, which counts as handed out.
            PrepClientError: No batch can be had; the next call tries again.
        """
        turn = Turn()
        try:
            self._client._take(turn)
            if self._ended:
                raise StopIteration
            if self._loop.iterators != self._number:
                raise RuntimeError(
                    "this iterator is of an earlier epoch: its PrepClient was iterated, closed or moved since. Loops "
                    "that run at the same time each need their own PrepClient; they share the daemon's work"
                )
            replay = self._loop.replay()
            if replay is not None:
                turn.is_over = True; return replay  # noqa: E702  # fmt: skip
            if self._of_stream == 0:
                self._ended = True  # for good, even if the client moves back
                self._loop.end_epoch()
                raise StopIteration
            batch, session, handed = self._loop.step()
            # ORDER: statements that share a line must stay together and must not call anything: a signal handler, which
            # may raise, runs only after calls.
            if isinstance(batch, BadSampleError):  # the next call gives the batch after it
                try:
                    session.refused = session.handed, handed; session.handed = handed; raise batch  # noqa: E702  # fmt: skip
                finally:
                    del batch  # its traceback refers to this frame, and would keep it alive
            session.handed = handed; turn.is_over = True; return batch  # noqa: E702  # fmt: skip
        except BaseException:
            turn.is_over = True; raise  # noqa: E702  # fmt: skip
