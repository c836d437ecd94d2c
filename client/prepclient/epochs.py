"""The iterator over the rest of one epoch, which a training loop holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prepclient.errors import BadSampleError
from prepclient.turns import Turn

if TYPE_CHECKING:
    from prepclient.client import PrepClient


class Epoch:
    """Iterates over the rest of one epoch.

    Args:
        client: The client.
        number: Number of this iterator; only the client's latest one works.
        ends_at: The epoch ends when the client has handed out this many batches in total.
    """

    def __init__(self, client: PrepClient, number: int, ends_at: int) -> None:
        self._client = client
        self._number = number
        self._ends_at = ends_at
        self._ended = False

    def __del__(self) -> None:
        """The loop dropped it, perhaps early: `len` of the client is the next epoch's from here on."""
        if self._client._iterators == self._number:
            self._client._end_replays()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Remaining batches."""
        return 0 if self._ended else self._of_stream + self._client._replays_left

    @property
    def _of_stream(self) -> int:
        return max(0, self._ends_at - self._client._attachment.totals.batches)

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: The epoch has ended.
            RuntimeError: The client was iterated or moved since.
            BadSampleError: Replaces a batch, which counts as handed out.
            PrepClientError: There is no batch; the next call tries again.
        """
        turn = Turn()
        try:
            self._client._take(turn)
            if self._ended:
                raise StopIteration
            if self._client._iterators != self._number:
                raise RuntimeError(
                    "this iterator is of an earlier epoch: its PrepClient was iterated, closed or moved since. Loops "
                    "that run at the same time each need their own PrepClient; they share the daemon's work"
                )
            replay = self._client._replay()
            if replay is not None:
                turn.is_over = True; return replay  # noqa: E702  # fmt: skip
            if self._of_stream == 0:
                self._ended = True  # for good, even if the client moves back
                self._client._epoch_ended()
                raise StopIteration
            batch, session, handed = self._client._next()
            # ORDER: statements that share a line must not be separated and must not call anything, because signal
            # handlers run after calls.
            if isinstance(batch, BadSampleError):  # consumed: the next call gives the batch after it
                try:
                    session.handed = handed; raise batch  # noqa: E702  # fmt: skip
                finally:
                    del batch  # its traceback holds this frame
            session.handed = handed; turn.is_over = True; return batch  # noqa: E702  # fmt: skip
        except BaseException:
            turn.is_over = True; raise  # noqa: E702  # fmt: skip
