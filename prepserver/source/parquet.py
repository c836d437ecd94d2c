"""The metadata of a Parquet file: its columns, their types, and the memory that they take when decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from prepserver.pipeline.kinds import Array, Bytes, Image, Json, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.record import class_names
from prepserver.pipeline.sources.parquet import Parquet
from prepserver.source.arrow_values import is_time
from prepserver.source.errors import SourceError, library
from prepserver.source.values import REPLACES, splits

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_WITH_THEM = {*_DICTIONARIES, "PLAIN", "RLE", "BIT_PACKED"}
"""Encodings of columns that pyarrow can read as dictionaries."""


_JSON = ("string", "large_string", "bool", "halffloat", "float", "double", "null")


def pyarrow_for(path: str) -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet; raise `SourceError` where it is not installed."""
    what = f"{path}: reading it needs pyarrow"
    return library("pyarrow", what, "arrow"), library("pyarrow.parquet", what, "arrow")


def leaves_of(path: str, schema: Any, spec: Parquet) -> dict[str, list[str]]:
    """Return what is read for each column, by dotted name, several if it joins them; raises `SourceError` if absent."""
    return {
        column: [_leaf(path, schema, spec, name, spec.kind_of(column)) for name in spec.names_of(column)]
        for column in spec.columns
    }


def _leaf(path: str, schema: Any, spec: Parquet, name: str, kind: Kind) -> str:
    parts, found, left = path_to(schema, name)
    if left:
        raise SourceError(f"{path} has {_missing(spec, name, found, left)}")
    if isinstance(kind, Image | Mask) and hasattr(found, "get_field_index") and found.get_field_index("bytes") >= 0:
        parts, found = [*parts, "bytes"], found.field("bytes").type  # the feature Image of ``datasets``
    is_stored = is_time(found) and isinstance(kind, Scalar) and kind.dtype == "int64"
    if not (is_stored or _fits(kind, found)):
        if isinstance(kind, Image | Mask | Bytes) and "string" in str(found):
            why = (
                "may hold paths, and files of this kind are read as bytes: write them into the column, or read a table "
            )
            raise SourceError(f"{path}: column {name!r} is {found}: it {why}with the paths by Csv or Jsonl")
        raise SourceError(f"{path}: column {name!r} is {found}, which cannot be read as {kind}{_remedy(found)}")
    return ".".join(parts)


def _missing(spec: Parquet, name: str, found: Any, rest: str) -> str:
    """Return the end of the error for a column that is not there, of whose name `rest` is not in the type `found`."""
    if not hasattr(found, "get_field_index"):
        return f"no column {name!r}: {rest!r} would lie in values of type {found}, and dots lead into structs only"
    names = [each.name for each in found]
    if names.count(rest) > 1:
        return f"several columns {name!r}: rename all but one"
    is_usual = spec == Parquet(spec.path)
    remedy = ". Parquet(path) reads images and labels: for others, pass columns=" * is_usual
    return f"no column {name!r}: {rest!r} is not among {', '.join(map(repr, names[:64]))}{remedy}"


def path_to(schema: Any, name: str) -> tuple[list[str], Any, str]:
    """Return the columns that a dotted name leads through, the type of the last one, and what is left of the name.

    Names of columns may have dots, too: of several ways, the one whose first column is shortest counts.
    """
    if not hasattr(schema, "get_field_index"):
        return [], schema, name
    if schema.get_field_index(name) >= 0:
        return [name], schema.field(name).type, ""
    failed: tuple[list[str], Any, str] = [], schema, name
    for first, rest in splits(name):
        if schema.get_field_index(first) >= 0:
            parts, found, left = path_to(schema.field(first).type, rest)
            if not left:
                return [first, *parts], found, left
            if not failed[0]:
                failed = [first, *parts], found, left
    return failed


def places_of(meta: Any, leaves: Sequence[str]) -> list[int]:
    """Return the numbers of the columns, as Parquet counts them, that belong to `leaves`."""
    names = [f"{meta.schema.column(place).path}." for place in range(meta.num_columns)]
    return [place for place, name in enumerate(names) if name.startswith(tuple(f"{each}." for each in leaves))]


def decoded_bytes(meta: Any, group: int, place: int) -> int:
    """Return the bytes of a column in a row group when decoded, with texts kept as a dictionary."""
    chunk, column = meta.row_group(group).column(place), meta.schema.column(place)
    width = column.length if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(chunk.physical_type, 4)
    return int(max(chunk.total_uncompressed_size, chunk.num_values * width))


def repeated(meta: Any, leaves: Sequence[str], most_bytes: int) -> list[str]:
    """Return the columns whose texts may take more than `most_bytes` if each row has its own copy.

    A dictionary stores a text once for all rows that have it.
    """
    found = []
    for place in places_of(meta, leaves):
        chunks = [meta.row_group(group).column(place) for group in range(meta.num_row_groups)]
        if not all(each.physical_type == "BYTE_ARRAY" and {*each.encodings} <= _WITH_THEM for each in chunks):
            continue
        if any(
            _DICTIONARIES & {*each.encodings} and each.num_values * each.total_uncompressed_size > most_bytes
            for each in chunks
        ):
            found.append(meta.schema.column(place).path)
    return found


def _remedy(found: Any) -> str:
    if is_time(found):
        return ': kinds.Scalar("int64") gives it as an integer'
    if str(found) == "null":
        return REPLACES
    while hasattr(found, "value_type"):
        found = found.value_type
    is_other = is_time(found) or str(found).startswith("decimal")
    return ": cast it to a float or an integer, and write the file again" * is_other


def _fits(kind: Kind, found: Any) -> bool:
    is_tensor = str(found).startswith("extension<arrow.fixed_shape_tensor")
    if is_tensor and not (isinstance(kind, Array) and _is_shaped(kind, found)):
        return False
    found = getattr(found, "storage_type", found)
    if isinstance(kind, Json):
        return _is_json(found)
    is_text = str(found) in ("string", "large_string") or str(found).startswith("dictionary<values=string,")
    if isinstance(kind, Text) or (is_text and isinstance(kind, Label) and kind.classes):
        return is_text or (str(found) == "null" and kind.may_be_missing)
    if isinstance(kind, Image | Mask | Bytes):
        return str(found) in ("binary", "large_binary") or str(found).startswith("fixed_size_binary")
    if isinstance(kind, Array | Tokens):
        if not hasattr(found, "value_type") or str(found).startswith("dictionary"):
            return False
        while hasattr(found, "value_type"):
            found = found.value_type
    if str(found) == "null":  # a column of nothing but nulls
        return kind.may_be_missing
    # pandas writes integers as floats if one of them is missing.
    floats = not isinstance(kind, Array | Tokens) or (isinstance(kind, Array) and kind.dtype.startswith("float"))
    return str(found).startswith(("int", "uint", "bool")) or (floats and str(found) in ("halffloat", "float", "double"))


def _is_shaped(kind: Array, tensor: Any) -> bool:
    order = tensor.permutation or []
    return kind.shape in (None, tuple(tensor.shape)) and order == sorted(order)


def _is_json(found: Any) -> bool:
    """Whether JSON has a form for all values of a type."""
    if hasattr(found, "get_field_index"):
        return all(_is_json(field.type) for field in found)
    if hasattr(found, "value_type"):
        return _is_json(found.value_type)
    return str(found).startswith(("int", "uint")) or str(found) in _JSON


def classes_of(schema: Any, spec: Parquet) -> list[str]:
    """Return the names of the classes: as declared, or as ``datasets`` stored them in the schema; none for numbers."""
    if declared := class_names(spec.columns):
        return declared
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = features[spec.names.get("label", "label")]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return list(map(str, names)) if "label" in spec.columns and isinstance(names, list) else []
