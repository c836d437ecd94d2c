"""A step of the training loop: one batch, and what makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from prepclient.session import Bad
from prepserver.pipeline.batches import Batch, BatchLine

VALID = "valid"  # the field that `on_error="mask"` adds


class Copied(NamedTuple):
    """The copy of the batch that begins at row `start`: when it was submitted, and when it was seen to be complete."""

    start: int
    began_ns: int
    ended_ns: int


class Step(NamedTuple):
    """A batch for the training loop."""

    batch: Batch  # its rows
    bad: list[Bad]  # rows that hold a replacement
    line: BatchLine  # the line after this batch, for `Session.handed`
    # The tensor of each column by name, or a tuple of tensors for several views; also ``valid``, on a device.
    fields: dict[str, Any]
    ready_ns: int  # when its rows were ready, by CLOCK_MONOTONIC
    wait_ns: int  # time during which missing rows held up the training loop
    copy_ns: int  # time during which the copying of ready rows held it up
    # Time for which the device was still busy with earlier steps, minus `copy_ns`. It can be negative: `copy_ns` is
    # reported some steps late, and the loop may have waited for that copy outside of `step`.
    own_ns: int = 0
    copied: Sequence[Copied] = ()  # copies that have completed since the last step


class BatchMaker(Protocol):
    """Makes tensors of a session's rows."""

    def step(self, timeout_s: float) -> Step:
        """The next batch, which the caller then enters into `Session.handed`.

        After an exception only `close` may be called.

        Raises:
            PrepClientError: The batch cannot come, or did not come within `timeout_s`.
        """

    def close(self) -> None:
        """Stops reading rows, so that the ring may be unmapped."""


def valid_rows(batch: Batch, bad: Iterable[Bad]) -> torch.Tensor:
    """Whether each row of a batch holds its own sample: (rows,), bool, False for a replacement."""
    valid = torch.ones(batch.stop - batch.start, dtype=torch.bool, device="cpu")
    for one in bad:
        valid[one.position - batch.start] = False
    return valid


class Trim:
    """Cuts columns of a batch to the longest row in it. See `prepserver.pipeline.op.Op.trims`."""

    def __init__(self, trims: Mapping[str, str]) -> None:
        self._trims = trims
        self._longest: dict[int, dict[str, int]] = {}

    def look(self, batch: Batch, scalars: Mapping[str, torch.Tensor]) -> None:
        """Notes the greatest lengths in a batch while they are in host memory, which needs no wait for a device."""
        if self._trims:
            longest = {name: scalars[name] for name in set(self._trims.values())}
            self._longest[batch.start] = {
                name: max(1, int(each.max())) if len(each) else 1 for name, each in longest.items()
            }

    def cut(self, batch: Batch, fields: dict[str, Any]) -> None:
        """Replaces columns of the batch by views of them, as long as the longest row."""
        longest = self._longest.pop(batch.start, {})
        for column, count in self._trims.items():
            fields[column] = fields[column][:, : longest[count]]
