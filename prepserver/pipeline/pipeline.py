"""A pipeline: the list of ops from a record to the fields of a row, canonical and hashed.

Two pipelines with the same digest give the same rows, so the digest decides which jobs share a lane.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prepserver.pipeline.checks import MAX_SIDE_PX, integer
from prepserver.pipeline.errors import SpecError, within
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import OPS, op_from_wire
from prepserver.pipeline.ops.decode import Decode
from prepserver.pipeline.ops.only import Only
from prepserver.pipeline.record import IMAGES, Columns, RowField, row_fields, with_index
from prepserver.pipeline.spec import Codes, digest_of

MAX_OPS = 64  # limit on the number of ops, not counting the `Decode` at the start

MAX_WIRE_BYTES = 24 << 10
"""Limit on a pipeline as JSON; its message to workers, of 64 KiB, holds other things, too."""

MAX_LOOKS = 1 << 16
"""Limit on `Op.looks` of all ops, times the columns: the daemon's loop needs 3 us for each."""

MAX_FIELDS = 512
MAX_FIELDS_BYTES = 16 << 10
"""Limits on the fields of a row. Their layout, with class names or a pipeline, is one message of 64 KiB."""

_FIELD_BYTES = 24  # of a field's layout in msgpack, without its name, its dtype and its sides
_SIDE_BYTES = 5

MAX_VIEWS = 16
"""Limit on the views of a sample: each costs a row's memory and a row's work; they share the decode."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Ops in order. `from_ops` and `from_wire` build one and refuse what cannot work."""

    ops: tuple[Op, ...]  # the first is a `Decode`
    columns: Columns = field(compare=False)  # what the samples hold, before any op
    fields: tuple[RowField, ...] = field(compare=False)  # of a row
    digest: str = field(compare=False)  # hex SHA-256 of the canonical wire form: the same in every process
    views: int = 1  # how often each sample is made, each time with its own random numbers
    first_view: int = 0  # the number of the first of them, on which their random numbers depend

    @property
    def row(self) -> RowField:
        """The first image of a row; raises `SpecError` if there is none."""
        images = [each for each in self.fields if isinstance(each.kind, Image)]
        if not images:
            raise SpecError("pipeline", self.to_wire(), "makes no image")
        return images[0]

    @property
    def decode(self) -> Decode:
        """The first op."""
        first = self.ops[0]
        assert isinstance(first, Decode)
        return first

    @property
    def apart(self) -> bool:
        """Whether each image is moved by itself: the sizes that are declared differ, or an op moves only one."""
        return _apart(self.columns, self.ops)

    @property
    def files(self) -> list[str]:
        """Paths of the files that its ops read."""
        return list(dict.fromkeys(path for op in self.ops for path in op.files))

    @property
    def trims(self) -> dict[str, str]:
        """The `Op.trims` of all ops."""
        found: dict[str, str] = {}
        for op in self.ops:
            found |= op.trims
            found |= {new: found[column] for new, column in op.copies.items() if column in found}
        return found

    @property
    def code(self) -> str:
        """Digest of the known code of its plug-ins and of the files of its ops; empty if there is none."""
        codes = [code for op in self.ops if (code := getattr(op, "code", ""))]
        return digest_of(codes) if codes else ""

    def with_code(self, codes: Codes) -> Pipeline:
        """Return it with the digests of plug-ins and files; raises `SpecError` if one is not loaded, or differs."""
        ops: list[Op] = []
        for place, op in enumerate(self.ops):
            with within(f"pipeline[{place}]"):
                ops.append(op.with_code(codes))
        return self if ops == list(self.ops) else Pipeline.from_ops(ops, self.numbers, self.columns)

    @property
    def numbers(self) -> range:
        """The numbers of its views."""
        return range(self.first_view, self.first_view + self.views)

    @classmethod
    def from_ops(cls, ops: Sequence[Op], views: int | range = 1, columns: Columns = IMAGES) -> Pipeline:
        """Build a pipeline; `Decode()` is added at the start if it is missing.

        `views` says how often each sample is made, 1 (the default) to `MAX_VIEWS`, or is a range of the numbers of its
        views, within the first `MAX_VIEWS`. `columns` are what the source's samples hold; images and labels by default.

        Raises:
            SpecError: An op cannot follow the one before it, rows would differ in shape, or `views` is out of range.
                The field names the op by its place in `ops`.
        """
        numbers = _numbers(views)
        views = len(numbers)
        given = _as_list(ops)
        for place, op in enumerate(given):
            if any(type(strange := each) not in OPS.values() for each in _with_inner(op)):
                if isinstance(op, type) and op in OPS.values():
                    raise SpecError(f"pipeline[{place}]", op, f"is a class: write {op.__name__}(...)")
                reason = f"is not an op: apply it to the batches, or choose among {', '.join(OPS)}"
                if isinstance(strange, Op) and not isinstance(strange, tuple(OPS.values())):
                    reason = f"{type(strange).__name__} needs a whole batch: put it into device_ops="
                raise SpecError(f"pipeline[{place}]", op, reason)
        rest = given[1:] if given and isinstance(given[0], Decode) else given
        offset = len(given) - len(rest)
        if len(rest) > MAX_OPS:
            raise SpecError("pipeline", len(rest), f"has more than {MAX_OPS} ops")
        _check_rows(rest, numbers, columns)
        full = (given[0] if offset else Decode(), *rest)
        wire = _wire(full, numbers)
        _check_size(rest, wire, columns)
        record: Columns = with_index(columns)
        for place, op in enumerate(rest, offset):
            if any(isinstance(kind, Image) and kind.layout is not None for kind in record.values()):
                raise SpecError(f"pipeline[{place}].op", type(op).__name__, "cannot follow ToLayout, the last op")
            with within(f"pipeline[{place}]"):
                record = op.after(record)
        if views > 1 and not any(kind.is_spatial for kind in record.values()):
            reason = (
                "makes several images of each sample, and the rows have no image. Two clients read side by side, with "
                "views=range(1) and views=range(1, 2), have two views of anything"
            )
            raise SpecError("views", views, reason)
        return cls(full, columns, _fields(record, views, given), digest_of(wire), views, numbers.start)

    @classmethod
    def from_wire(cls, wire: object, columns: Columns = IMAGES) -> Pipeline:
        """Build a pipeline from what came over the wire, trusting nothing in it; raises `SpecError` as `from_ops`."""
        ops: list[Op] = []
        entries, views = _as_list(wire), range(1)
        if entries and isinstance(entries[-1], Mapping) and {"views"} <= entries[-1].keys() <= {"views", "first_view"}:
            with within(f"pipeline[{len(entries) - 1}]"):
                last = entries.pop()
                first = integer("first_view", last.get("first_view", 0), 0, MAX_VIEWS - 1)
                views = range(first, first + integer("views", last["views"], 1, MAX_VIEWS))
        for place, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or not all(isinstance(name, str) for name in entry):
                raise SpecError(f"pipeline[{place}]", entry, "must be a map of names to values")
            with within(f"pipeline[{place}]"):
                ops.append(op_from_wire(entry))
        return cls.from_ops(ops, views, columns)

    def to_wire(self) -> list[dict[str, Any]]:
        """Return the canonical form: a list of one map of plain values per op, then one of its views if not only 0."""
        return _wire(self.ops, self.numbers)


def _numbers(views: object) -> range:
    """Return the numbers of the views that a user asks for."""
    if not isinstance(views, range):
        return range(integer("views", views, 1, MAX_VIEWS))
    if not views or views.step != 1 or views.start < 0 or views.stop > MAX_VIEWS:
        raise SpecError(
            "views", views, f"must be a number, or a range of numbers from 0 to {MAX_VIEWS - 1} without gaps"
        )
    return views


def _wire(ops: Sequence[Op], numbers: range) -> list[dict[str, Any]]:
    first = {"first_view": numbers.start} if numbers.start else {}
    views = [{"views": len(numbers), **first}] if first or len(numbers) > 1 else []
    return [*(op.to_wire() for op in ops), *views]


def _with_inner(op: Any) -> Iterator[Any]:
    """Yield an op and all ops nested in it, which may be ops on batches."""
    yield op
    if isinstance(op, Nesting):
        for each in op.transforms:
            yield from _with_inner(each)
    elif isinstance(op, Only):
        yield from _with_inner(op.inner)


def _apart(columns: Columns, ops: Sequence[Op]) -> bool:
    sizes = {kind.size for kind in columns.values() if isinstance(kind, Image)}
    return len(sizes - {None}) > 1 or any(op.moves_one for op in ops)


def _check_rows(ops: Sequence[Op], numbers: range, columns: Columns) -> None:
    """Refuse ops that need other views, mix samples twice, or move images apart that others follow."""
    for op in ops:
        if op.views and numbers != range(op.views):
            raise SpecError(
                "views", len(numbers) if numbers.start == 0 else numbers,
                f"must be {op.views}: {type(op).__name__} makes {op.views} views of each sample",
            )  # fmt: skip
    mixing = [type(op).__name__ for op in ops if op.partners]
    if len(mixing) > 1:
        raise SpecError("pipeline", mixing, "mix samples, and only one op of a pipeline may")
    beside = [name for name, kind in columns.items() if kind.is_spatial and not isinstance(kind, Image)]
    if (mixing or beside) and _apart(columns, ops):
        reason = (
            "cannot be where each image is moved by itself: columns= declares images of different sizes, or Only(...) "
            "moves one. Without that, all that lies on the images moves together"
        )
        raise SpecError("pipeline", mixing or beside, reason)


def _check_size(ops: Sequence[Op], wire: list[dict[str, Any]], columns: Columns) -> None:
    if (nbytes := len(json.dumps(wire))) > MAX_WIRE_BYTES:
        raise SpecError("pipeline", wire, f"takes {nbytes} bytes, more than {MAX_WIRE_BYTES}")
    if (looks := sum(op.looks for op in ops) * len(columns)) > MAX_LOOKS:
        reason = f"looks at ops and columns, more than {MAX_LOOKS}: put fewer ops into RandomOrder"
        raise SpecError("pipeline", looks, reason)


def _as_list(given: object) -> list[Any]:
    if not isinstance(given, list | tuple):
        raise SpecError("pipeline", given, "must be a list of ops")
    if len(given) > MAX_OPS + 2:  # checked first; the two others are `Decode` and the views
        raise SpecError("pipeline", len(given), f"has more than {MAX_OPS} ops")
    return list(given)


def _fields(columns: Columns, views: int, given: Sequence[Op]) -> tuple[RowField, ...]:
    try:
        fields = row_fields(columns, views)
    except SpecError as error:
        ops = [type(op).__name__ for op in given]
        raise SpecError("pipeline", ops, error.reason) from None
    if len(fields) > MAX_FIELDS:
        raise SpecError("views", views, f"makes rows of {len(fields)} fields, more than {MAX_FIELDS}")
    if (nbytes := sum(map(_layout_bytes, fields))) > MAX_FIELDS_BYTES:
        reason = f"are more than {MAX_FIELDS_BYTES} bytes in a message: use fewer columns, or shorter names of them"
        raise SpecError("columns", nbytes, reason)
    for each in fields:
        if each.kind.is_spatial and max(each.shape, default=0) > MAX_SIDE_PX:
            raise SpecError("pipeline", each.shape, f"rows may have at most {MAX_SIDE_PX} pixels a side")
    return fields


def _layout_bytes(field: RowField) -> int:
    return _FIELD_BYTES + len(field.name.encode()) + len(field.dtype) + _SIDE_BYTES * len(field.shape)
