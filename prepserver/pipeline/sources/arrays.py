"""`Arrays`: columns from files of arrays."""

from collections.abc import Mapping
from typing import Any, Self

from prepserver.pipeline import declared
from prepserver.pipeline.arrayfile import BadArrayError, StoredArray, is_headless, stored_arrays
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Image, Kind, Label, Mask, Scalar
from prepserver.pipeline.source import PathLike, SourceSpec, absolute, in_one_place
from prepserver.pipeline.spec import check_absolute
from prepserver.pipeline.urls import is_url


class Arrays(SourceSpec):
    """Columns from .npy, .npz, .safetensors or .bin files, read in place.

    The first dimension of each array counts the samples. ``Arrays(x="/data/x.npy", label="/data/y.npy")``, or
    ``Arrays("/data/train.npz")`` for all arrays of a file, ``Arrays(x="/data/train.npz")`` for some. An array with one
    dimension becomes a `Scalar`, or a `Label` if it is called ``label`` and holds integers; any other becomes an
    `Array`. Files must be uncompressed, in C order and little-endian. The client reads the headers of the files for all
    columns that `columns` does not declare. A .bin file has no header, only rows, such as a text's tokens in windows of
    one length, and must be declared: ``Arrays("/data/train.bin", columns={"tokens": kinds.Array((1025,), "uint16")})``.

    Attributes:
        path: A file whose arrays are all columns, under their own names; None where `files` names the columns.
        columns: Kinds of columns that should be another kind, such as ``{"y": kinds.Label()}``, or of all columns if
            the client cannot read the files; it never reads URLs. With `path`, these are then all columns.
        files: The file of each column, as the daemon's machine sees it. A relative path counts from the current
            directory. From a file with several arrays, the one with the column's name is read.

    Raises:
        SpecError: There is no column, a file cannot be used, or a kind does not fit its array.
    """

    paths = ("files",)

    def __init__(
        self, path: str | PathLike | None = None, /, *, columns: Mapping[str, Kind] | None = None,
        **files: str | PathLike,
    ) -> None:  # fmt: skip
        kinds = declared.declared_columns(columns) if columns else {}
        if path is not None:
            if files:
                raise SpecError("path", path, "is the one file of all columns: name it, or a file for each column")
            one = absolute("path", path)
            is_told = kinds and (is_headless(one) or not _is_here(one))
            files = dict.fromkeys(kinds if is_told else _stored("path", one), one)
            if "" in files:
                raise SpecError("path", path, "has one array, without a name: write Arrays(x=PATH)")
        where = {name: absolute(name, file) for name, file in files.items()}
        if unknown := kinds.keys() - where.keys():
            raise SpecError("columns", unknown.pop(), f"is no column; there are: {', '.join(where) or 'none'}")
        for name in where.keys() - kinds.keys():
            kinds[name] = _kind(name, array_of(_stored(name, where[name], name), name))
        for name, kind in kinds.items():
            if (kind.size if isinstance(kind, Image | Mask) else kind.shape if isinstance(kind, Array) else ()) is None:
                raise SpecError(f"columns.{name}", kind, "must say the shape of a row, which the file has")
        in_one_place("files", tuple(where.values()))
        self.files = where
        self.declared = declared.declared_columns({name: kinds[name] for name in where})

    @property
    def location(self) -> str:
        return ", ".join(dict.fromkeys(self.files.values()))

    def named_paths(self) -> list[tuple[str, str]]:
        return [(f"file of column {name}", path) for name, path in self.files.items()]

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """As `SourceSpec.from_params`; opens nothing, because every column is declared."""
        files, columns = params.get("files"), declared.declared_columns(params.get("columns"))
        if len(params) != 2 or not isinstance(files, Mapping) or files.keys() != columns.keys():
            raise SpecError("files", files, "must name a file for each of the columns, and nothing else")
        check_absolute(list(files), files)
        return cls(columns=columns, **files)


def array_of(found: Mapping[str, StoredArray], column: str) -> StoredArray:
    """Return a column's array of a file: that with its name, or without a name; raises `SpecError` if there is none."""
    array = found.get("") or found.get(column)
    if array is None:
        raise SpecError(column, column, f"is no array of the file; it has: {', '.join(found) or 'none'}")
    return array


def _kind(name: str, array: StoredArray) -> Kind:
    shape, dtype = array.shape[1:], array.dtype
    if shape:
        return Array(shape, dtype)
    return Label() if name == "label" and "int" in dtype else Scalar(dtype)


def _is_here(path: str) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False


def _stored(field: str, path: str, only: str = "") -> dict[str, StoredArray]:
    if is_url(path):
        raise SpecError(field, path, "is a URL, which only the daemon reads: declare the kinds of all columns")
    try:
        with open(path, "rb") as file:
            return stored_arrays(path, file, only)
    except BadArrayError as error:
        raise SpecError(field, path, str(error)) from None
    except OSError as error:
        reason = f"cannot be read here ({error.strerror}): correct the path, or declare the kinds of all columns"
        raise SpecError(field, path, reason) from None
