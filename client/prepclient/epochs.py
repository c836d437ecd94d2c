"""The iterator that a training loop holds: what is left of one epoch of its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prepclient.errors import BadSampleError
from prepclient.turns import Turn

if TYPE_CHECKING:
    from prepclient.client import PrepClient


class Epoch:
    """Iterates over what is left of one epoch, which ends when its client has handed out `ends_at` batches.

    Args:
        client: Whose.
        number: Of this iterator; a client goes on with its latest one only.
        ends_at: See above.
    """

    def __init__(self, client: PrepClient, number: int, ends_at: int) -> None:
        self._client = client
        self._number = number
        self._ends_at = ends_at
        self._ended = False

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Batches that are left."""
        return 0 if self._ended else max(0, self._ends_at - self._client._attachment.totals.batches)

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: The epoch has ended.
            RuntimeError: Its client was iterated or moved since.
            BadSampleError: In the place of a batch, which counts as handed out.
            PrepClientError: There is no batch; the next call tries again.
        """
        turn = Turn()
        try:
            self._client._take(turn)
            if self._ended:
                raise StopIteration
            if self._client._iterators != self._number:
                raise RuntimeError(
                    "this iterator is of an earlier epoch: its PrepClient was iterated or moved since. Each loop that "
                    "runs at the same time needs a PrepClient of its own; they share the daemon's work"
                )
            if len(self) == 0:
                self._ended = True  # for good, whatever the client hands out to others
                raise StopIteration
            batch, session, handed = self._client._next()
            # ORDER: nothing may come between the statements of a line, nor do they call anything: that is where
            # signal handlers run.
            if isinstance(batch, BadSampleError):  # consumed: whoever catches this and goes on gets the batch after it
                try:
                    session.handed = handed; raise batch  # noqa: E702  # fmt: skip
                finally:
                    del batch  # its traceback holds this frame
            session.handed = handed; turn.is_over = True; return batch  # noqa: E702  # fmt: skip
        except BaseException:
            turn.is_over = True; raise  # noqa: E702  # fmt: skip
