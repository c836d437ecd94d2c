"""What a user declares about a plug-in, as data: its parameters, and the kinds of its columns or results.

The code of a plug-in is known to worker processes only. Client and daemon check a pipeline by what is declared here;
the worker holds the code to it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from numbers import Real
from types import FunctionType
from typing import Any, ClassVar, Self

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import (
    ITEM_BYTES,
    Array,
    Boxes,
    Bytes,
    Image,
    Json,
    Keypoints,
    Kind,
    Label,
    Mask,
    PerBox,
    Scalar,
    Text,
    Tokens,
)
from prepserver.pipeline.record import Columns, with_index
from prepserver.pipeline.spec import Codes, Role, Spec

DeclaredColumns = Mapping[str, Kind] | list[Any]
"""Columns as a user declares them, or as `columns_to_wire` gives them."""

MAX_NAME_CHARS = 64
MAX_PARAMS_BYTES = 8 << 10
"""As JSON. Workers are told of sources and pipelines, with other things, in messages of 64 KiB."""

MAX_COLUMNS = 256  # their declarations, and the layout of their rows, are parts of messages of 64 KiB

MAX_DIMENSIONS, _MAX_SIDE = 8, 2**31  # of the layout of a ring
_MAX_CLASSES, _MAX_CLASS_NAME_CHARS = 4096, 256
_MAX_NESTING = 3  # of lists in a parameter; a message allows not much more
_MOST_FLOAT = {"float16": 65504.0, "float32": 3.4028234663852886e38}
_NAN = "nan"  # on the wire, whose numbers are finite

KINDS: dict[str, type[Kind]] = {
    kind.__name__: kind
    for kind in (Image, Mask, Boxes, PerBox, Keypoints, Label, Scalar, Array, Text, Json, Bytes, Tokens)
}
"""The kinds that a column can be declared to have, by name."""


class PluginSpec(Spec):
    """A plug-in by name, with parameters for its code and the code's digest; raises `SpecError` if one is invalid."""

    role: ClassVar[Role]  # what the plug-in is
    own: ClassVar[tuple[str, ...]]  # names of arguments that the plug-in's code does not get

    def __init__(self, name: object, params: Mapping[str, object], code: object) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            reason = f"must be the name of a plug-in: 1 to {MAX_NAME_CHARS} characters"
            if isinstance(name, type | FunctionType):
                reason += f'. Write "{name.__name__}"; "{name.__module__}:{name.__name__}" among the plug-ins loads it'
            raise SpecError("name", name, reason)
        self.name = name
        self.params = _parameters(params, self.own)  # for its code
        self.code = checks.code(code)  # digest of its code; empty for any code

    def with_code(self, codes: Codes) -> Self:
        """As `Spec.with_code`."""
        found = codes.get((self.role, self.name))
        if found is None:
            known = ", ".join(sorted(name for role, name in codes if role == self.role)) or "none"
            raise SpecError(
                "name",
                self.name,
                f"is no {self.role} plug-in that is loaded; loaded are: {known}. A daemon's configuration names its "
                "plug-ins (load under [plugins], or --plugin); a private daemon and inline=True take plugins=",
            )
        if self.code not in ("", found):
            reason = f"is not the code that is loaded: {self.role} plug-in {self.name!r} has {found}"
            raise SpecError("code", self.code, reason)
        return self.replaced(code=found)

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """As `Spec.from_params`."""
        known = ("name", "params", *cls.own)
        for field in (*params, *known):
            if field not in known:
                reason = f"{cls.__name__} has no such parameter; it has: {', '.join(known)}"
                raise SpecError(field, params[field], reason)
            if field not in params:
                raise SpecError(field, None, f"{cls.__name__} needs it")
        given = params["params"]
        if not isinstance(given, Mapping):
            raise SpecError("params", given, "must be a map of names to values")
        return cls(params["name"], **_parameters(given, cls.own), **{field: params[field] for field in cls.own})


def _parameters(given: Mapping[str, object], reserved: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of a plug-in, sorted by name: numbers, strings, bools, None, and lists of these."""
    for name in given:
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_NAME_CHARS or name in reserved:
            taken = f" and none of {', '.join(reserved)}"
            raise SpecError("params", name, f"names of parameters are identifiers{taken}")
    found = {name: _plain(name, given[name], _MAX_NESTING) for name in sorted(given)}
    if (nbytes := len(json.dumps(found))) > MAX_PARAMS_BYTES:
        reason = f"are {nbytes} bytes, at most {MAX_PARAMS_BYTES}: put them into a file that the plug-in reads"
        raise SpecError("params", found, reason)
    return found


def _plain(field: str, value: object, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple) and depth:
        return [_plain(field, item, depth - 1) for item in value]
    try:
        if hasattr(value, "__index__"):
            return checks.integer(field, value, -(2**63), 2**63 - 1)
        return checks.number(field, value)
    except SpecError:
        reason = f"must be a finite number of 64 bits, a string, a bool, None, or lists of these, {_MAX_NESTING} deep"
        raise SpecError(field, value, reason) from None


def kind_to_wire(kind: Kind) -> dict[str, Any]:
    """Return a declared kind as a map of plain values: every attribute but the defaults of `_LATER`."""
    wire: dict[str, Any] = {"kind": type(kind).__name__}
    for name in _attributes(type(kind)):
        value = getattr(kind, name)
        if value != _LATER.get((type(kind), name), ...):
            plain = list(value) if isinstance(value, tuple) else value
            wire[name] = _NAN if plain != plain else plain
    return wire


def declared_kind(field: str, given: object) -> Kind:
    """Return a kind that was declared: an object of one, or the map of `kind_to_wire`, which may hold anything.

    Raises:
        SpecError: No such kind, or an attribute that cannot be.
    """
    wire = kind_to_wire(given) if isinstance(given, Kind) and type(given) in KINDS.values() else given
    name = wire.get("kind") if isinstance(wire, Mapping) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not isinstance(wire, Mapping):
        raise SpecError(field, given, f"must be one of the kinds {', '.join(KINDS)}, such as kinds.Image()")
    names = _attributes(kind)
    wire = {name: default for (each, name), default in _LATER.items() if each is kind} | dict(wire)
    if set(wire) != {"kind", *names}:
        raise SpecError(field, given, f"{kind.__name__} has the attributes {', '.join(names) or '(none)'}")
    found = {name: _CHECKS[name](f"{field}.{name}", wire[name], _DTYPES.get(kind, tuple(ITEM_BYTES))) for name in names}
    if (missing := found.get("missing")) is not None:
        if "dtype" in found:
            found["missing"] = number_of(f"{field}.missing", found["dtype"], missing)
        elif not isinstance(missing, str) or len(missing) > _MAX_CLASS_NAME_CHARS:
            raise SpecError(
                f"{field}.missing", missing, f"must be a text of at most {_MAX_CLASS_NAME_CHARS} characters"
            )
        elif kind is Json and not _is_json(missing):
            raise SpecError(f"{field}.missing", missing, 'must be JSON, such as "[]" or "null"')
    if kind is Image:
        found["top"] = float(checks.WHOLE_TOPS.get(found["dtype"], math.inf))
    return kind(**found)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def number_of(field: str, dtype: str, value: object) -> float:
    """Return a number that is one of a dtype; raises `SpecError` if it is not."""
    if dtype.startswith("float"):
        most = _MOST_FLOAT.get(dtype, math.inf)
        is_nan = value == _NAN if isinstance(value, str) else isinstance(value, Real) and value != value
        return math.nan if is_nan else checks.number(field, value, -most, most)
    if dtype == "bool":
        return checks.integer(field, int(value) if isinstance(value, bool) else value, 0, 1)
    bits = 8 * ITEM_BYTES[dtype]
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return checks.integer(field, value, low, high)


def several_names(field: str, value: object) -> tuple[str, ...]:
    """Return several names of columns; raises `SpecError` if they cannot be."""
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_COLUMNS:
        raise SpecError(field, value, f"must be the name of a column, or a list of 1 to {MAX_COLUMNS} names")
    found = tuple(checks.name(field, each) for each in value)
    if len(set(found)) < len(found):
        raise SpecError(field, value, "names a column twice")
    return found


def _attributes(kind: type[Kind]) -> list[str]:
    return [each.name for each in dataclasses.fields(kind) if each.name in _CHECKS]


def _shape(field: str, value: object, _dtypes: tuple[str, ...]) -> tuple[int, ...] | None:
    if value is None:
        return None
    sides = checks.items(field, value, range(1, MAX_DIMENSIONS + 1))
    return tuple(checks.integer(field, side, 1, _MAX_SIDE) for side in sides)


def _class_names(field: str, value: object) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for name in checks.items(field, value, range(_MAX_CLASSES + 1)):
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_CLASS_NAME_CHARS:
            raise SpecError(field, name, f"must be the name of a class, of 1 to {_MAX_CLASS_NAME_CHARS} characters")
        if name in names:
            raise SpecError(field, name, "is the name of two classes")
        names[name] = None
    return tuple(names)


def _dtype_name(value: object) -> object:
    """Return the name of a dtype of torch's or numpy's; anything else as it is."""
    if isinstance(value, str):
        return value
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value).removeprefix("torch.")
    return name if name in ITEM_BYTES else value


_CHECKS: dict[str, Callable[[str, object, tuple[str, ...]], Any]] = {
    "size": lambda field, value, _: None if value is None else checks.size(field, value),
    "count": lambda field, value, _: None if value is None else checks.tokens(field, value),
    "each": lambda field, value, _: None if value is None else checks.integer(field, value, 1, 1000),
    "pairs": lambda field, value, _: checks.pairs(field, value, 1000),
    "channels": lambda field, value, _: checks.integer(field, value, 1, checks.MAX_CHANNELS),
    "dtype": lambda field, value, dtypes: checks.choice(field, _dtype_name(value), dtypes),
    "shape": _shape,
    "classes": lambda field, value, _: _class_names(field, value),
    "missing": lambda _field, value, _dtypes: value,  # it must fit the dtype: see `declared_kind`
}
"""By attribute of a kind; what has none here is not declared."""

_DTYPES: dict[type[Kind], tuple[str, ...]] = {
    Image: (*checks.WHOLE_TOPS, "float16", "float32"), Mask: ("uint8", "uint16"), PerBox: ("int64", "float32"),
}  # fmt: skip
"""Element types of kinds that may not have all."""

_LATER: dict[tuple[type[Kind], str], Any] = {
    **{(kind, "missing"): None for kind in (Scalar, Array, Text, Json)},
    (Label, "classes"): (), (Mask, "dtype"): "uint8",
}  # fmt: skip
"""Attributes that servers of the release before do not know, and their defaults, which are not on the wire."""


def columns_to_wire(columns: Columns) -> list[dict[str, Any]]:
    """Return the columns of a source, in order, as plain values."""
    return [{"column": name, **kind_to_wire(kind)} for name, kind in columns.items()]


def declared_columns(given: object, has_class_names: bool = False) -> dict[str, Kind]:
    """Return the columns that a source was declared to have: a map, or the list of `columns_to_wire`.

    Raises:
        SpecError: No columns, too many, a name that cannot be, or a kind that cannot be given.
    """
    pairs: list[tuple[object, object]]
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list) and all(isinstance(each, Mapping) for each in given):
        pairs = [(each.get("column"), {k: v for k, v in each.items() if k != "column"}) for each in given]
    else:
        raise SpecError("columns", given, 'must be a map of names to kinds, such as {"image": kinds.Image()}')
    if not pairs or len({str(name) for name, _ in pairs}) < len(pairs):
        raise SpecError("columns", given, f"must be 1 to {MAX_COLUMNS} different columns")
    if len(pairs) > MAX_COLUMNS:
        reason = f"are more than {MAX_COLUMNS}: leave some out, or join numbers to a kinds.Array((n,))"
        raise SpecError("columns", len(pairs), reason)
    columns: dict[str, Kind] = {}
    for name, kind in pairs:
        name = checks.name("columns", name)
        columns[name] = declared_kind(f"columns.{name}", kind)
        if not has_class_names and getattr(columns[name], "classes", None):
            raise SpecError(
                f"columns.{name}.classes", columns[name], "only Csv, Jsonl, Parquet and TFRecord take names"
            )
    with_index(columns)
    return columns
