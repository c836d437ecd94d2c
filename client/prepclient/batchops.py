"""The ops of a batch in order: one kernel where torch.compile makes it, else op by op.

A `ByteOp` parts those before it from those after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from prepclient.batchop import FIRST, BatchOp, ByteOp, FloatOp, Linear, LinearOp, RowDraws, along
from prepclient.device_ops import DEVICE_OPS
from prepclient.device_ops._mixing import SoftLabels
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import INDEX

log = logging.getLogger("prepclient")

_torch: Any = torch  # its `_dynamo`, which only compiling needs, takes seconds to import


class BatchOps:
    """What ops do to a batch of images on one device.

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
        ending = len(made)
        while ending and isinstance(made[ending - 1], LinearOp):
            ending -= 1
        self.image = image  # what is known of the images afterwards
        self.steps = made[:ending]  # all ops but the linear ones at the end
        self.linear = Linear()  # what remains after the steps
        for op_on_batch in made[ending:]:
            assert isinstance(op_on_batch, LinearOp)
            self.linear = op_on_batch.after(self.linear)
        self.width = sum(step.width for step in self.steps)  # how many numbers the steps draw for a row
        self.soft = SoftLabels.of(self.steps)  # how labels become soft; None if they stay
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
        """Computes images (n, C, H, W), of any element type, from stored `rows` into `out`.

        `drawn` is (n, width), float32, and `known` has the same numbers in host memory. If `fused`, it tries to compile
        the ops, once.
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
    """Ops that are one computation: in float32, rounded once, at the end.

    Args:
        steps: The ops.
        linear: What comes after them.
        device: Where the images are.

    Attributes:
        width: How many numbers the steps draw for a row.
    """

    def __init__(self, steps: Sequence[FloatOp[Any]], linear: Linear, device: torch.device) -> None:
        self._steps = steps
        self._scale, self._bias = linear.constants(device)
        self.width = sum(step.width for step in steps)
        self._compiled: Callable[..., None] | None = None
        self._is_refused = False

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
        images = along(images, self._scale, self._bias)
        out.copy_(images if out.dtype.is_floating_point else images.round())

    def _run_compiled(self, out: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor) -> bool:
        """Whether it ran. A machine may lack the compiler that torch needs, which must not cost the job its batches."""
        if self._is_refused:
            return False
        try:
            # The marks go on aliases, because the user may give `out` to another compiled model.
            tensors = [tensor.detach() for tensor in (out, rows, drawn)]
            for tensor in tensors:
                _torch._dynamo.maybe_mark_dynamic(tensor, 0)  # or a short last batch would be compiled separately
            if self._compiled is None:
                self._compiled = torch.compile(self._compute, fullgraph=True)
            self._compiled(*tensors)
        except Exception as e:  # noqa: BLE001 - compilers fail in many ways
            self._is_refused = True
            why = f"{type(e).__name__}: {e}".splitlines()[0]
            log.warning("torch.compile cannot fuse device_ops; they run op by op: %s", why)
            return False
        return True


@lru_cache(maxsize=32)
def batch_ops(ops: tuple[Op, ...], image: Image, device: torch.device) -> BatchOps:
    """Ops of a batch; the same object for equal arguments, so that a client that attaches again compiles nothing."""
    with torch.inference_mode(False):  # the user may leave inference mode later
        return BatchOps(ops, image, device)


def placed(error: SpecError, place: int) -> SpecError:
    """The error of an op, by its place in `device_ops`."""
    return SpecError(f"device_ops[{place}].{error.field}", error.value, error.reason)


class Drawing:
    """Draws for the batches of a job, on the host.

    `ops` are those of each tensor of images that a batch holds, and which view of the samples that is.
    """

    def __init__(self, seed: int, ops: Sequence[tuple[BatchOps | None, int]]) -> None:
        self._seed = seed
        self._ops = ops
        self._widths = [each.width if each is not None else 0 for each, _ in ops]
        self.width = sum(self._widths)  # how many numbers a row has
        # Views of a sample share its label, and are mixed alike: the first one's says how.
        self._soft = next(((n, each.soft) for n, (each, _) in enumerate(ops) if each and each.soft), None)

    def __call__(self, start: int, samples: int, scalars: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What a batch draws, (rows, width) float32: a function of the seed and of its rows alone.

        Its first row is at position `start`, and a pass has `samples` positions. `scalars` are its fields with one
        number per row.

        Raises:
            InvalidSpec: A label is none of `num_classes`.
        """
        if self._soft is not None:
            self._soft[1].check(scalars)
        indices = scalars[INDEX].tolist()
        passes = [position // samples for position in range(start, start + len(indices))]
        drawn = [part for ops, view in self._ops if ops for part in ops.draw(self._seed, passes, indices, view)]
        return torch.from_numpy(np.concatenate(drawn, axis=1, dtype=np.float32))

    def split(self, drawn: torch.Tensor) -> Sequence[torch.Tensor]:
        """What the ops of each tensor of images drew, in order."""
        return torch.split(drawn, self._widths, dim=1)

    def unwritten(self, small: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Memory for what `softened` returns."""
        if self._soft is None:
            return {}
        soft = self._soft[1]
        return {soft.column: soft.empty(small[soft.column])}

    def softened(self, small: Mapping[str, torch.Tensor], drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """The labels of a batch as weights of classes, by name; empty if they stay. `drawn` is what the batch drew."""
        if self._soft is None:
            return {}
        place, soft = self._soft
        return {soft.column: soft(small[soft.column], self.split(drawn)[place])}
