"""What a stage is: it turns ready rows into the training loop's tensors, a batch at a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import torch

from prepclient.session import Bad
from prepserver.pipeline.batches import Batch, BatchLine


class Step(NamedTuple):
    """A batch for the training loop.

    Attributes:
        batch: Its rows.
        bad: Rows that hold a replacement.
        line: The line after this batch, for `Session.handed`.
        fields: Tensor of each column by name, or a tuple of tensors for several views. From a device also ``valid``, if
            its stage has that field.
        ready_ns: When its rows were there, by CLOCK_MONOTONIC.
        wait_ns: Time for which missing rows held up the training loop.
        copy_ns: Time for which rows that were ready held it up, while they were copied.
        own_ns: Time for which the loop's own earlier work held it up: a device that is still computing.
            Less `copy_ns`, and so below 0 if the loop itself waited for a late copy.
    """

    batch: Batch
    bad: list[Bad]
    line: BatchLine
    fields: dict[str, Any]
    ready_ns: int
    wait_ns: int
    copy_ns: int
    own_ns: int = 0


class Stage(Protocol):
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
    """For each row of a batch, whether it holds its sample and not a replacement."""
    valid = torch.ones(batch.stop - batch.start, dtype=torch.bool, device="cpu")
    for one in bad:
        valid[one.position - batch.start] = False
    return valid
