"""Headers of array files (.npy, .npz, .safetensors): which arrays they hold, and where each one lies.

A .bin file has no header: it holds nothing but rows. Client and daemon read the same few headers: the client to know
shapes and dtypes, an indexer to hold the file to them.
"""

from __future__ import annotations

import ast
import json
import math
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from prepserver.pipeline.kinds import ITEM_BYTES, Kind, Shape

_MAX_NPY_HEADER_BYTES, _MAX_SAFETENSORS_HEADER_BYTES = 10_000, 100 << 20
_NPY = {"|b1": "bool", "|u1": "uint8", "|i1": "int8"} | {
    f"<{kind[0]}{size}": f"{kind}{8 * size}" for kind in ("uint", "int", "float") for size in (2, 4, 8)
}
_SAFE = {
    "BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64",
    **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip

HEADLESS = ".bin"

_ZIP_LENGTHS_AT = 26  # in a local header; the name and the extra field follow, then the data


class BadArrayError(Exception):
    """A file, or an array in it, cannot be used; the text says why and what to do, without the file's name."""


class StoredArray(NamedTuple):
    """An array in a file: C order, little-endian."""

    shape: Shape
    dtype: str  # one of `prepserver.pipeline.kinds.ITEM_BYTES`
    offset: int  # where its first byte lies in the file

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def is_headless(path: str) -> bool:
    """Whether a file has no header, so that its column must be declared."""
    return path.lower().endswith(HEADLESS)


def headless_array(size: int, kind: Kind) -> StoredArray:
    """Return the whole rows of a kind in a file of `size` bytes without a header; raises `BadArrayError` for none."""
    shape, dtype = kind.stored()
    row_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if size < row_bytes:
        raise BadArrayError(f"has {size} bytes, and a row of shape {shape} and dtype {dtype} has {row_bytes}")
    return StoredArray((size // row_bytes, *shape), dtype, 0)


def stored_arrays(path: str, file: IO[bytes], only: str = "") -> dict[str, StoredArray]:
    """Return the arrays of a seekable file by name; that of an .npy file has an empty name.

    The suffix of `path` decides the format. `only` is the array that is wanted, if the file has one of that name:
    others in it may be unusable.

    Raises:
        BadArrayError: It cannot be used.
        OSError: It cannot be read.
    """
    size = file.seek(0, 2)
    file.seek(0)
    for suffix, read in _FORMATS.items():
        if path.lower().endswith(suffix):
            found = read(file, only)
            break
    else:
        if is_headless(path):
            raise BadArrayError(
                "has no header: say what its rows are, such as columns={'tokens': kinds.Array((1025,), 'uint16')}"
            )
        raise BadArrayError(f"does not end in {', '.join((*_FORMATS, HEADLESS))}")
    for name, array in found.items():
        if array.offset + array.nbytes > size:
            what = f"array {name!r} of {array.nbytes} bytes" if name else f"its {array.nbytes} bytes"
            raise BadArrayError(f"is cut off: {what} from byte {array.offset} do not fit into {size}. Write it again")
    return found


def npy_header(file: IO[bytes]) -> tuple[str, bool, tuple[Any, ...]]:
    """Read the header of an .npy file: element type as numpy spells it, whether in Fortran order, shape, unchecked.

    Raises:
        BadArrayError: It is none, or that of Python objects or records.
    """
    magic = file.read(8)
    if len(magic) < 8 or magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
        raise BadArrayError("is no .npy file, or damaged: it does not begin as one")
    digits = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(digits), "little")
    if length > _MAX_NPY_HEADER_BYTES:
        raise BadArrayError(f"is damaged: its header has {length} bytes")
    text = file.read(length)
    try:
        header = ast.literal_eval(text.decode("latin1").strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        if len(text) < length or not isinstance(shape, tuple):
            raise ValueError
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise BadArrayError("is damaged: its header is no header of an array") from None
    if descr == "|O" or not isinstance(descr, str):
        raise BadArrayError("holds Python objects or records; save plain numbers, one array for each column")
    return descr, bool(fortran), shape


def _npy(file: IO[bytes]) -> StoredArray:
    """Read a header; the offset is the file's position afterwards."""
    descr, fortran, shape = npy_header(file)
    if fortran and len(shape) > 1:
        raise BadArrayError("is in Fortran order, so no row lies together; save numpy.ascontiguousarray(array)")
    if descr[:1] == ">":
        raise BadArrayError("is big-endian; save array.astype(array.dtype.newbyteorder('<'))")
    return _stored(shape, _NPY.get(descr, "?"), descr, file.tell())


def _npz(file: IO[bytes], only: str) -> dict[str, StoredArray]:
    found: dict[str, StoredArray] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members = {
                each.filename.removesuffix(".npy"): each
                for each in archive.infolist()
                if each.filename.endswith(".npy")
            }
            for name, member in _wanted(members, only):
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise BadArrayError(
                        f"is compressed (array {name!r}), so no row can be read alone; save it with numpy.savez "
                        "(not savez_compressed), or as .npy files"
                    )
                file.seek(member.header_offset + _ZIP_LENGTHS_AT)
                lengths = struct.unpack("<HH", file.read(4))
                begin = member.header_offset + _ZIP_LENGTHS_AT + 4 + sum(lengths)
                with archive.open(member) as inner, _naming(name):
                    array = _npy(inner)
                if array.offset + array.nbytes > member.file_size:
                    raise BadArrayError(f"is damaged: array {name!r} does not fit into its {member.file_size} bytes")
                found[name] = array._replace(offset=begin + array.offset)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error) as error:
        raise BadArrayError(f"is damaged, or no .npz file: {error}") from error
    return found


def _safetensors(file: IO[bytes], only: str) -> dict[str, StoredArray]:
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_SAFETENSORS_HEADER_BYTES:
        raise BadArrayError(f"is damaged, or no .safetensors file: its header has {length} bytes")
    try:
        header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        places = {
            name: (each["dtype"], each["shape"], begin, end)
            for name, each in header.items()
            for begin, end in [each["data_offsets"]]
        }
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        raise BadArrayError("is damaged, or no .safetensors file: its header is not one") from None
    found: dict[str, StoredArray] = {}
    for name, (dtype, shape, begin, end) in _wanted(places, only):
        if not isinstance(begin, int) or begin < 0 or not isinstance(shape, list):
            raise BadArrayError("is damaged: its header is not one")
        with _naming(name):
            found[name] = _stored(tuple(shape), _SAFE.get(str(dtype), "?"), dtype, 8 + length + begin)
        if end != begin + found[name].nbytes:
            raise BadArrayError(f"is damaged: array {name!r} has another size than its shape says")
    return found


def _wanted(arrays: dict[str, Any], only: str) -> Iterable[tuple[str, Any]]:
    return [(only, arrays[only])] if only in arrays else arrays.items()


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the name of an array before what is wrong with it."""
    try:
        yield
    except BadArrayError as error:
        raise BadArrayError(f"holds array {name!r}, which {error}") from None


def _stored(shape: tuple[Any, ...], dtype: str, given: object, offset: int) -> StoredArray:
    if not shape or not all(type(side) is int and side >= 0 for side in shape):
        raise BadArrayError(f"has the shape {shape}; the first dimension must count the samples")
    if dtype not in ITEM_BYTES:
        raise BadArrayError(f"has the dtype {given}; save it as one of {', '.join(ITEM_BYTES)}")
    return StoredArray(shape, dtype, offset)


_FORMATS: dict[str, Callable[[IO[bytes], str], dict[str, StoredArray]]] = {
    ".npy": lambda file, _only: {"": _npy(file)},
    ".npz": _npz,
    ".safetensors": _safetensors,
}

SUFFIXES = (*_FORMATS, HEADLESS)  # how names of files of arrays end
