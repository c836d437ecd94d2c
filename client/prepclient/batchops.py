"""The ops on a batch, one after the other: fused by torch.compile where it works, else op by op.

A `ByteOp` separates the ops before it from those after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from prepclient.batchop import FIRST, BatchOp, ByteOp, FloatOp, Linear, LinearOp, RowDraws, scaled
from prepclient.device_ops import DEVICE_OPS
from prepclient.device_ops._mixing import SoftLabels
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import INDEX

log = logging.getLogger("prepclient")

_torch: Any = torch  # its `_dynamo`, which only compiling needs, takes seconds to import


class BatchOps:
    """A sequence of ops on batches of images on one device.

    Raises:
        SpecError: An op cannot be done on a batch, or cannot follow what comes before it.
    """

    def __init__(self, ops: Sequence[Op], image: Image, device: torch.device) -> None:
        made: list[BatchOp[Any]] = []
        for place, op in enumerate(ops):
            try:
                made.append(DEVICE_OPS[type(op)](op, image, device))
                after = op.kind_after(image)
            except SpecError as e:
                raise placed(e, place) from None
            assert isinstance(after, Image)
            image = after
        self.image = image  # describes the images after all ops
        count = len(made)
        while count and isinstance(made[count - 1], LinearOp):
            count -= 1
        self.steps = made[:count]  # all ops but the linear ones at the end
        self.linear = Linear()  # the linear ones at the end, as one
        for last in made[count:]:
            assert isinstance(last, LinearOp)
            self.linear = last.after(self.linear)
        self.width = sum(step.width for step in self.steps)  # numbers that the steps draw per row
        self.soft = SoftLabels.of(self.steps)  # how labels become soft; None if they stay integers
        self._parts: list[ByteOp[Any] | _Fused] = []
        fused: list[FloatOp[Any]] = []
        for step in self.steps:
            if isinstance(step, FloatOp):
                fused.append(step)
                continue
            assert isinstance(step, ByteOp)
            self._parts += [_Fused(fused, Linear(), device), step] if fused else [step]
            fused = []
        self._parts.append(_Fused(fused, self.linear, device))

    def draw(self, seed: int, passes: Sequence[int], indices: Sequence[int], view: int) -> list[Any]:
        """What each step draws for the rows of a batch; see `RowDraws`."""
        return [
            step.draw(RowDraws(seed, passes, indices, FIRST + place, view))
            for place, step in enumerate(self.steps)
            if step.width
        ]

    def run(
        self, out: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor, known: torch.Tensor, *, fused: bool
    ) -> None:
        """Computes images (n, C, H, W) of any dtype from stored `rows` into `out`.

        `drawn` is (n, width), float32, and `known` has the same numbers in host memory. With `fused` the ops are
        compiled, if torch can do so.
        """
        if not len(rows):
            return
        end = 0
        with torch.no_grad():
            for part in self._parts:
                begin, end = end, end + part.width
                if isinstance(part, ByteOp):
                    rows = part.change(rows, drawn[:, begin:end], known[:, begin:end])
                    continue
                target = out if part is self._parts[-1] else torch.empty_like(rows)
                part.run(target, rows, drawn[:, begin:end], fused=fused)
                rows = target


class _Fused:
    """Ops that are one computation, in float32 and rounded once, at the end: `steps`, and then `linear`."""

    def __init__(self, steps: Sequence[FloatOp[Any]], linear: Linear, device: torch.device) -> None:
        self._steps = steps
        self._scale, self._bias = linear.constants(device)
        self.width = sum(step.width for step in steps)  # numbers that the steps draw per row
        self._compiled: Callable[..., None] | None = None
        self._failed_to_compile = False

    def run(self, out: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor, *, fused: bool) -> None:
        if not self._steps and self._scale is None:
            out.copy_(rows)
        elif not (fused and self._run_compiled(out, rows, drawn)):
            self._compute(out, rows, drawn)

    def _compute(self, out: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor) -> None:
        images, end = rows.to(torch.float32), 0
        for step in self._steps:
            begin, end = end, end + step.width
            images = step.apply(images, drawn[:, begin:end])
        images = scaled(images, self._scale, self._bias)
        out.copy_(images if out.dtype.is_floating_point else images.round())

    def _run_compiled(self, out: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor) -> bool:
        """Returns whether it ran. A machine may lack the compiler that torch needs; the job must run there, too."""
        if self._failed_to_compile:
            return False
        try:
            # The marks go on aliases, because the user may give `out` to another compiled model.
            tensors = [tensor.detach() for tensor in (out, rows, drawn)]
            for tensor in tensors:
                _torch._dynamo.maybe_mark_dynamic(tensor, 0)  # else a short last batch compiles everything again
            if self._compiled is None:
                self._compiled = torch.compile(self._compute, fullgraph=True)
            self._compiled(*tensors)
        except Exception as e:  # noqa: BLE001 - compilers fail in many ways
            self._failed_to_compile = True
            reason, *more = f"{type(e).__name__}: {e}".splitlines()
            if reason.endswith(":") and more:  # torch wraps the error of its backend
                reason = f"{reason} {more[0]}"
            log.warning("torch.compile cannot fuse device_ops; they run op by op: %s", reason)
            return False
        return True


@lru_cache(maxsize=32)
def batch_ops(ops: tuple[Op, ...], image: Image, device: torch.device) -> BatchOps:
    """The ops on a batch; equal arguments give the same object, so a client that attaches again compiles nothing."""
    with torch.inference_mode(False):  # the user may leave inference mode later
        return BatchOps(ops, image, device)


def placed(error: SpecError, place: int) -> SpecError:
    """The error of an op, with its place in `device_ops`."""
    return SpecError(f"device_ops[{place}].{error.field}", error.value, error.reason)


class Drawing:
    """Draws the random numbers for a job's batches, on the host.

    `ops` has, for each tensor of images in a batch, the ops on it (or None) and the number of its view.
    """

    def __init__(self, seed: int, ops: Sequence[tuple[BatchOps | None, int]]) -> None:
        self._seed = seed
        self._ops = ops
        self._widths = [each.width if each is not None else 0 for each, _ in ops]
        self.width = sum(self._widths)  # numbers drawn per row
        # The views of a sample share its label and are mixed alike, so the first view's numbers hold for the label.
        self._soft = next(((n, each.soft) for n, (each, _) in enumerate(ops) if each and each.soft), None)

    def __call__(self, start: int, samples: int, scalars: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The numbers for one batch, (rows, width), float32: a function of the seed and the rows alone.

        The batch begins at position `start`, and a pass has `samples` positions. `scalars` has the batch's fields with
        one number per row.

        Raises:
            InvalidSpec: A label is not below `num_classes`.
        """
        if self._soft is not None:
            self._soft[1].check(scalars)
        indices = scalars[INDEX].tolist()
        passes = [position // samples for position in range(start, start + len(indices))]
        drawn = [part for ops, view in self._ops if ops for part in ops.draw(self._seed, passes, indices, view)]
        return torch.from_numpy(np.concatenate(drawn, axis=1, dtype=np.float32))

    def split(self, drawn: torch.Tensor) -> Sequence[torch.Tensor]:
        """The numbers for each tensor of images, in order."""
        return torch.split(drawn, self._widths, dim=1)

    def unwritten(self, small: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Uninitialised memory for what `softened` returns."""
        if self._soft is None:
            return {}
        soft = self._soft[1]
        return {soft.column: soft.empty(small[soft.column])}

    def softened(self, small: Mapping[str, torch.Tensor], drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """The labels of a batch as weights of classes, by column; empty if they stay integers."""
        if self._soft is None:
            return {}
        place, soft = self._soft
        return {soft.column: soft(small[soft.column], self.split(drawn)[place])}
