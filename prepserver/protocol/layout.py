"""The layout of a ring: for each field one dense, page-aligned array of `rows` rows.

Position p of a stream is in row ``p % rows``. Both sides compute addresses from this object.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Iterable
from typing import Annotated, Any

from prepserver.protocol.schema import ProtocolError, Range, Size, build

PAGE_BYTES = mmap.PAGESIZE  # 64 KiB on some ARM machines; both sides run on one
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
MAX_RING_BYTES = 1 << 42


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a row."""

    name: Annotated[str, Size(32)]  # the column's name; further views append ``_1``, ``_2`` and so on
    dtype: Annotated[str, Size(16)]  # one of `ITEM_BYTES`
    # shape of one row, without the batch dimension; ``()`` for a scalar
    shape: Annotated[list[Annotated[int, Range(1, 2**31)]], Size(8)]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of this field."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True, slots=True)
class RingLayout:
    """`rows` rows of `fields`; the arrays follow each other, and each starts at a page."""

    rows: int
    fields: tuple[Field, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole segment, a multiple of the page."""
        return sum(_pages(self.rows * f.row_bytes) for f in self.fields)

    @property
    def dense(self) -> tuple[Field, ...]:
        """Fields with an array in each row, in order."""
        return tuple(f for f in self.fields if f.shape)

    @property
    def scalars(self) -> tuple[Field, ...]:
        """Fields with one number in each row, in order."""
        return tuple(f for f in self.fields if not f.shape)

    def field(self, name: str) -> Field:
        """The field called `name`; `KeyError` if there is none."""
        return {f.name: f for f in self.fields}[name]

    def offset(self, name: str) -> int:
        """Byte at which the array of field `name` starts."""
        before = self.fields[: self.fields.index(self.field(name))]
        return sum(_pages(self.rows * f.row_bytes) for f in before)

    def spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The rows of positions [start, stop) as one or two runs of row numbers (two if they wrap)."""
        if not 0 <= stop - start <= self.rows:
            raise ValueError(f"[{start}, {stop}) does not fit a ring of {self.rows} rows")
        if start == stop:
            return []
        first, last = start % self.rows, (stop - 1) % self.rows
        if first <= last:
            return [(first, last + 1)]
        return [(first, self.rows), (0, last + 1)]

    def to_wire(self) -> dict[str, Any]:
        """Plain data for a message."""
        return {"rows": self.rows, "fields": [dataclasses.asdict(f) for f in self.fields]}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RingLayout:
        """The layout that `to_wire` described.

        Raises:
            ProtocolError: Not a layout, an unknown dtype, a name twice, or more than `MAX_RING_BYTES`.
        """
        raw = build(_Wire, wire)
        made = cls(raw.rows, tuple(build(Field, f) for f in raw.fields))
        names = [f.name for f in made.fields]
        for f in made.fields:
            if f.dtype not in ITEM_BYTES:
                raise ProtocolError(f"layout: dtype {f.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
            if names.count(f.name) > 1:
                raise ProtocolError(f"layout: field {f.name!r} appears twice")
        if made.nbytes > MAX_RING_BYTES:
            raise ProtocolError(f"layout: a ring of {made.nbytes} bytes; at most {MAX_RING_BYTES}")
        return made


@dataclasses.dataclass(frozen=True, slots=True)
class _Wire:
    rows: Annotated[int, Range(1, 2**31)]
    fields: Annotated[list[dict[str, Any]], Size(512)]


def ring_fields(fields: Iterable[tuple[Any, ...]]) -> tuple[Field, ...]:
    """Fields of a ring, from tuples that begin with a name, a dtype and the shape of one row."""
    return tuple(Field(name, dtype, list(shape)) for name, dtype, shape, *_ in fields)


def whole_page_rows(row_bytes: int) -> int:
    """The fewest rows that fill whole pages: a ring of a multiple of them can be mapped twice, end to end."""
    return PAGE_BYTES // math.gcd(PAGE_BYTES, row_bytes)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
