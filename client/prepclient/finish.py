"""The last step of a batch, on the CPU or a GPU: its device ops, then normalise, cast and lay out.

Rows are stored as small as possible (uint8, HWC), because jobs share memory and the bus. Normalised floats take up to
four times the bytes and cost a GPU only microseconds, so they are made last. The caller decides on which stream the
kernels run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from prepclient.batchops import BatchOps, Drawing, batch_ops, placed
from prepclient.device_ops import DEVICE_OPS
from prepclient.rowlook import Layout, RowLook
from prepclient.threads import in_one_thread
from prepserver.pipeline.checks import items, mean_fits
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops.normalize import Normalize
from prepserver.pipeline.ops.to_dtype import ToDtype
from prepserver.pipeline.ops.to_layout import ToLayout
from prepserver.pipeline.pipeline import MAX_OPS, Pipeline
from prepserver.pipeline.record import Columns, RowField
from prepserver.pipeline.spec import digest_of

_CACHED_ELEMENTS = 1 << 18  # 1 MiB of float32, which fits into a core's cache

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Finish:
    """The last computation on images, by default nothing; a `SpecError` has the name of an invalid value as `field`."""

    # ``(mean, std)``, one number per channel each, for values in [0, 1] as in torchvision (255 in uint8 is 1.0): short
    # for ``ToDtype(torch.float32, scale=True), Normalize(mean, std)`` after `ops`
    normalize: tuple[Sequence[float], Sequence[float]] | None = None
    # ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``: short for ``ToDtype(dtype, scale=True)`` at the very
    # end. None keeps the dtype that the ops give.
    dtype: torch.dtype | None = None
    # ``torch.channels_last``, or ``torch.contiguous_format``, which is short for ``ToLayout("CHW")``. None keeps the
    # stored order, which is channels_last unless the pipeline changes it.
    memory_format: torch.memory_format | None = None
    ops: Sequence[Op] = ()  # ops on the batch; a `ToLayout` at the end becomes `memory_format` and `layout`
    compile: bool | None = None  # whether torch.compile fuses the ops; None does so on a GPU only
    # order of the axes that the user sees; None for the pipeline's
    layout: Layout | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.normalize is not None:
            object.__setattr__(self, "normalize", _checked_normalize(self.normalize))
        if self.dtype is not None and self.dtype not in (*_FLOATS, torch.uint8):
            reason = "one of torch.float16, torch.bfloat16, torch.float32, torch.uint8"
            raise SpecError("dtype", self.dtype, reason)
        if self.normalize is not None and self.dtype == torch.uint8:
            raise SpecError("dtype", self.dtype, "normalised values are not whole numbers: ask for a float type")
        if self.memory_format not in (None, torch.channels_last, torch.contiguous_format):
            reason = "torch.channels_last or torch.contiguous_format"
            raise SpecError("memory_format", self.memory_format, reason)
        ops = items("device_ops", self.ops, range(MAX_OPS + 1))
        for place, op in enumerate(ops):
            if type(op) not in DEVICE_OPS and not (isinstance(op, ToLayout) and place == len(ops) - 1):
                known = ", ".join(sorted(each.__name__ for each in DEVICE_OPS))
                reason = f"cannot be done on a batch: put it into ops, or choose among {known}, and ToLayout at the end"
                raise SpecError(f"device_ops[{place}]", op, reason)
        if ops and isinstance(ops[-1], ToLayout):
            if self.memory_format is not None:
                raise SpecError(
                    "memory_format", self.memory_format, "device_ops end with ToLayout: leave out one of the two"
                )
            object.__setattr__(self, "layout", ops[-1].layout)
            object.__setattr__(self, "memory_format", torch.contiguous_format)
            ops = ops[:-1]
        object.__setattr__(self, "ops", ops)

    @property
    def digest(self) -> str:
        """Identifies the ops; empty if there are none."""
        return digest_of([op.to_wire() for op in self.ops])[:16] if self.ops else ""

    def ops_on(self, look: RowLook, device: torch.device) -> BatchOps:
        """All ops on images of one column, including those of `normalize` and of a `dtype` that scales.

        Raises:
            SpecError: They do not fit the images.
        """
        ops: tuple[Op, ...] = tuple(self.ops)
        is_uint8 = batch_ops(ops, look.image, device).image.dtype == "uint8"  # others stay in their own unit
        if self.normalize is not None or (is_uint8 and self.dtype not in (None, torch.uint8)):
            ops = (*ops, ToDtype("float32", scale=is_uint8))
        if self.normalize is not None:
            if len(self.normalize[0]) not in (1, look.channels):
                remedy = f"to normalize columns apart, put Only({look.name!r}, Normalize(mean, std)) into ops"
                raise SpecError("normalize", self.normalize, f"{look.name} has {look.channels} channels; {remedy}")
            ops = (*ops, Normalize(*self.normalize))
        done = batch_ops(ops, look.image, device)
        if self.dtype == torch.float16 and done.image.top == 65535:
            reason = "ends at 65504, and the images go to 65535: pass normalize= or take torch.float32"
            raise SpecError("dtype", self.dtype, reason)
        return done

    def check_range(self, field: RowField) -> None:
        """Raises `SpecError` for a `normalize` of normalised values, or by a mean beyond them (124 for [0, 1])."""
        if self.normalize is None or not isinstance(field.kind, Image):
            return
        image = batch_ops(tuple(self.ops), RowLook.of(field, 1).image, torch.device("cpu")).image
        if image.top is None:
            reason = "ops or device_ops have a Normalize already: leave out one"
            raise SpecError("normalize", self.normalize, reason)
        mean_fits("normalize", self.normalize[0], 1.0 if image.dtype == "uint8" else image.top)


def _checked_normalize(value: object) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """``(mean, std)`` as two tuples of finite floats, of the same length, every std above zero."""
    try:
        mean, std = (tuple(float(number) for number in numbers) for numbers in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise SpecError("normalize", value, "a pair (mean, std), one number per channel each") from None
    if len(mean) != len(std) or not mean:
        raise SpecError("normalize", value, f"{len(mean)} means but {len(std)} stds")
    if not all(math.isfinite(number) for number in (*mean, *std)) or min(std) <= 0:
        raise SpecError("normalize", value, "every number finite and every std above 0")
    return mean, std


class Finisher:
    """A :class:`Finish` for one column on one device. Columns that are no images stay as they are.

    Without ops that draw, it computes one multiply-add in float32, ``x * scale + bias``, with 255, mean and std folded
    into two constants per channel, and rounds once. On a GPU that is one kernel, which reads and writes each byte once.
    On the CPU, torch would convert the whole batch to float32 first; a few images at a time stay in the core's cache.

    Raises:
        SpecError: `finish` does not fit the rows: another number of channels, float rows cast to uint8, or
            channels_last for images that the user sees as HWC.
    """

    def __init__(self, finish: Finish, look: RowLook, device: torch.device) -> None:
        if not look.is_image:
            finish = Finish()
        self._look = look
        self._device = device
        self._scratch: torch.Tensor | None = None
        self._scale: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        self._compiles = device.type == "cuda" if finish.compile is None else finish.compile
        if finish.memory_format == torch.channels_last and look.seen == "HWC":
            raise SpecError("memory_format", finish.memory_format, "the pipeline's images are HWC already")
        stored = torch.empty((1, *look.shape), dtype=look.dtype, device="meta")
        one = look.view(stored)
        if finish.memory_format is not None:
            one = torch.empty_like(one, memory_format=finish.memory_format)
        self._shape = one.shape[1:]
        self._strides = (one.numel(), *one.stride()[1:])
        self._keeps_order = self._strides[1:] == look.view(stored).stride()[1:]
        self.dtype = look.dtype  # dtype of a finished batch
        self.ops: BatchOps | None = None  # the ops on images; None for other columns
        if look.is_image:
            self.ops = finish.ops_on(look, device)
            self.dtype = finish.dtype or getattr(torch, self.ops.image.dtype)
            if self.dtype == torch.uint8 and self.ops.image.dtype != "uint8":
                raise SpecError("dtype", self.dtype, f"the images are {self.ops.image.dtype}")
            self._scale, self._bias = map(self._laid_out, self.ops.linear.constants(device))
        self.width = self.ops.width if self.ops is not None else 0  # numbers that the ops draw per row
        # whether a finished batch has the bits and strides of the stored rows
        self.is_plain = not self.width and self._scale is None and self.dtype == look.dtype and self._keeps_order

    def _laid_out(self, constants: torch.Tensor | None) -> torch.Tensor | None:
        """Constants of a `Linear` for images as the user sees them; on the CPU, for `_flat` images."""
        if constants is None:
            return None
        if self._device.type != "cpu":
            return constants if self._look.seen == "CHW" else constants.flatten()
        if self._look.stored == "CHW":
            return constants.flatten(1)
        return constants.flatten().repeat(self._look.shape[1] if len(constants) > 1 else 1)

    def nbytes(self, n: int) -> int:
        """Bytes of a finished batch of `n` images."""
        return n * self._strides[0] * self.dtype.itemsize

    def empty(self, n: int, block: torch.Tensor | None = None) -> torch.Tensor:
        """An uninitialised batch of `n` images, in `block` (uint8, at least ``nbytes(n)``) or in new memory."""
        shape, strides = (n, *self._shape), self._strides
        if block is None:
            return torch.empty_strided(shape, strides, dtype=self.dtype, device=self._device)
        return block[: self.nbytes(n)].view(self.dtype).as_strided(shape, strides)

    def fill(
        self,
        out: torch.Tensor,
        parts: Sequence[torch.Tensor],
        drawn: torch.Tensor | None = None,
        known: torch.Tensor | None = None,
    ) -> None:
        """Computes the batch from its stored parts into `out`, which comes from :meth:`empty`.

        `parts` are stored rows ``(n_i, *shape)`` in order; several if the batch wraps around its ring or lies in two.
        `drawn`, needed if `width` is not 0, are the numbers that the ops drew, ``(n, width)``, and `known` the same in
        host memory; None copies them from the device, and waits for it.
        """
        if self.width:
            assert self.ops is not None
            assert drawn is not None
            known = drawn.cpu() if known is None else known
            planes = _planes(parts[0] if len(parts) == 1 else torch.cat(list(parts)), self._look.stored)
            self.ops.run(_planes(out, self._look.seen), planes, drawn, known, fused=self._compiles)
            return
        if self._device.type == "cpu" and not self.is_plain:
            in_one_thread(self._fill, out, parts)
        else:
            self._fill(out, parts)

    def _fill(self, out: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        begin = 0
        for part in parts:
            target = out[begin : begin + len(part)]
            begin += len(part)
            if self.is_plain and self._device.type == "cpu":  # numpy copies in one thread
                np.copyto(self._look.back(target).numpy(), part.numpy())
            elif self._scale is None:
                target.copy_(self._look.view(part))
            elif self._device.type == "cpu":
                self._compute_by_images(target, part)
            else:
                self._compute(target, self._look.view(part))

    def _compute(self, out: torch.Tensor, values: torch.Tensor) -> None:
        assert self._scale is not None
        if values.dtype == torch.uint16:
            values = values.to(torch.float32)  # torch copies uint16, but does not compute with it
        if self._bias is None:
            torch.mul(values, self._scale, out=out)
        else:
            torch.addcmul(self._bias, values, self._scale, out=out)

    def _compute_by_images(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        at_once = max(1, _CACHED_ELEMENTS // math.prod(self._look.shape))
        if self._scratch is None:
            with torch.inference_mode(False):  # the user may leave inference mode later
                shape = (at_once, *self._look.shape)
                self._scratch = torch.empty(shape, dtype=torch.float32, device=self._device)
        for target, stored in zip(torch.split(out, at_once), torch.split(rows, at_once), strict=True):
            wide = self._scratch[: len(stored)]
            wide.copy_(stored)
            if self._keeps_order and self.dtype == torch.float32:
                self._compute(self._flat(self._look.back(target)), self._flat(wide))
            else:
                self._compute(self._flat(wide), self._flat(wide))
                target.copy_(self._look.view(wide))

    def _flat(self, images: torch.Tensor) -> torch.Tensor:
        """Stored images with a long innermost axis, because an inner loop over three channels is slow."""
        return images.flatten(2)  # (n, H, W * C) or (n, C, H * W)


def _planes(images: torch.Tensor, layout: Layout) -> torch.Tensor:
    return images.permute(0, 3, 1, 2) if layout == "HWC" else images


def looks_of(pipeline: Pipeline, finish: Finish) -> list[RowLook]:
    """In order, the layouts of columns with several numbers per row; raises `SpecError` unless `finish` fits them."""
    record: Columns = {each.column: each.kind for each in pipeline.fields}
    for place, op in enumerate(finish.ops):
        try:
            record = op.after(record)
            others = [name for name, kind in record.items() if kind.is_spatial and not isinstance(kind, Image)]
            if op.moves and others:
                reason = f"moves images, and on a batch {', '.join(others)} would not follow: put it into ops"
                raise SpecError("op", type(op).__name__, reason)
        except SpecError as e:
            raise placed(e, place) from None
    looks = []
    for each in pipeline.fields:
        if each.shape and each.view == 0:
            finish.check_range(each)
            look = RowLook.of(each, pipeline.views if each.kind.is_spatial else 1)
            looks.append(replace(look, seen=finish.layout) if look.is_image and finish.layout else look)
            Finisher(finish, looks[-1], torch.device("cpu"))  # raises here rather than at the first batch
    if not any(look.is_image for look in looks):
        for name in ("normalize", "dtype", "memory_format"):
            if (value := getattr(finish, name)) is not None:
                raise SpecError(name, value, "is for images, and the rows have none")
    return looks


def drawing_of(seed: int, looks: Sequence[RowLook], finish: Finish, first_view: int = 0) -> Drawing | None:
    """What draws for the ops on a job's batches, whose first view has that number; None if nothing is drawn."""
    cpu = torch.device("cpu")
    ops = [(look, finish.ops_on(look, cpu) if look.is_image else None) for look in looks]
    drawing = Drawing(seed, [(each, first_view + view) for look, each in ops for view in range(look.views)])
    return drawing if drawing.width else None
