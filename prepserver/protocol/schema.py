"""Checks a decoded msgpack map against a frozen dataclass, field by field.

A message is a frozen dataclass whose fields are annotated with the bounded types below. `build` makes every message
that arrives on a socket, so a handler never sees a wrong type, a value out of range, an unknown key or an oversized
list. (msgpack by itself accepts timestamps, duplicate keys and NaN.)
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar


class ProtocolError(ValueError):
    """A message breaks the protocol; the text names the message and the field."""


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Bounds of an int or float, both inclusive."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """The most characters, items or keys that a value may have."""

    most: int


class Grows:
    """Base of messages to which later releases may add fields, which this one ignores.

    Other messages are questions and orders, which are carried out as a whole or refused.
    """

    __slots__ = ()


MAX_POSITION = 2**62  # far beyond any run; leaves room for sums in 63 bits

Position = Annotated[int, Range(0, MAX_POSITION)]
Count = Annotated[int, Range(0, 2**48)]
Small = Annotated[int, Range(0, 2**31 - 1)]
Nanoseconds = Annotated[int, Range(0, MAX_POSITION)]
Seconds = Annotated[float, Range(0.0, 1e9)]
Shards = Annotated[int, Range(1, 2**16)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
MAX_WORD_CHARS = 256
Word = Annotated[str, Size(MAX_WORD_CHARS)]
Text = Annotated[str, Size(4096)]
Path = Annotated[str, Size(4096)]
ClassNames = Annotated[list[Word], Size(2**14)]
Tree = Annotated[dict[str, Any], Size(64)]  # a spec, which `prepserver.pipeline` validates further
Trees = Annotated[list[Any], Size(66)]  # `Decode`, 64 ops and the number of views

MAX_CLASS_NAMES_BYTES = 1 << 14  # a quarter of a message; ImageNet's take 13 kB

MAX_DEPTH = 24  # nesting of a spec: 8 sources inside each other, of two levels each, and the values of the innermost
MAX_KEY_CHARS = 256  # the path in an error repeats it for every item below it
_SHOWN_CHARS = 80

M = TypeVar("M")
Check = Callable[[str, Any], Any]


def build(cls: type[M], fields: Mapping[str, Any]) -> M:
    """Makes a message of `cls` from decoded fields.

    Raises:
        ProtocolError: A field is missing, of a wrong type, out of its bounds, or unknown (unless `cls` `Grows`).
    """
    checks = _checks(cls)  # type: ignore[arg-type]
    values = {}
    missing = ""
    for name, where, check, required in checks:
        if name in fields:
            values[name] = check(where, fields[name])
        elif required:
            missing = missing or name
    if len(values) < len(fields) and not issubclass(cls, Grows):
        # Keys are str or bytes, which do not compare with each other.
        unknown = fields.keys() - {name for name, *_ in checks}
        raise ProtocolError(f"{cls.__name__}: unknown field {_shown(min(unknown, key=repr))}")
    if missing:
        raise ProtocolError(f"{cls.__name__}: field {missing!r} is missing")
    return cls(**values)


@functools.cache
def _checks(cls: type) -> list[tuple[str, str, Check, bool]]:
    """For each field: its name, its name in errors, its check, and whether it is required."""
    hints, missing = typing.get_type_hints(cls, include_extras=True), dataclasses.MISSING
    return [
        (f.name, f"{cls.__name__}.{f.name}", _check(hints[f.name]), f.default is f.default_factory is missing)
        for f in dataclasses.fields(cls)
    ]


def _check(hint: Any) -> Check:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        kind, note = typing.get_args(hint)
        return _scalar(kind, note) if isinstance(note, Range) else _sized(_check(kind), note.most)
    if origin in (typing.Union, types.UnionType):
        options = [a for a in typing.get_args(hint) if a is not type(None)]
        inner = _check(options[0])
        return lambda where, value: None if value is None else inner(where, value)
    if origin is typing.Literal:
        return _literal(typing.get_args(hint))
    if origin is list:
        return _list_of(_check(typing.get_args(hint)[0]))
    if origin is tuple:
        return _tuple_of([_check(a) for a in typing.get_args(hint)])
    if origin is dict:
        return _map
    if hint is Any:
        return _tree
    return _scalar(hint)


def _shown(value: Any) -> str:
    """A value as errors show it, bounded so that no peer can fill the log."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 3] + "..."


def _scalar(kind: type[Any], bounds: Range | None = None) -> Check:
    def check(where: str, value: Any) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        # Not isinstance, for which a bool is an int.
        if type(value) is not kind:
            raise ProtocolError(f"{where}: expected {kind.__name__}, got {type(value).__name__}")
        if kind is float and not math.isfinite(value):
            raise ProtocolError(f"{where}: {value} is not a finite number")
        if bounds is not None and not bounds.low <= value <= bounds.high:
            raise ProtocolError(f"{where}: {value} is not in [{bounds.low}, {bounds.high}]")
        return value

    return check


def _sized(inner: Check, most: int) -> Check:
    def check(where: str, value: Any) -> Any:
        value = inner(where, value)
        if len(value) > most:
            raise ProtocolError(f"{where}: {len(value)} long, at most {most}")
        return value

    return check


def _literal(allowed: tuple[Any, ...]) -> Check:
    def check(where: str, value: Any) -> Any:
        if type(value) is not str or value not in allowed:
            raise ProtocolError(f"{where}: {_shown(value)} is not one of {', '.join(map(str, allowed))}")
        return value

    return check


def _list_of(inner: Check) -> Check:
    def check(where: str, value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise ProtocolError(f"{where}: expected a list, got {type(value).__name__}")
        return [inner(f"{where}[{i}]", item) for i, item in enumerate(value)]

    return check


def _tuple_of(inner: list[Check]) -> Check:
    def check(where: str, value: Any) -> Any:
        if type(value) not in (list, tuple) or len(value) != len(inner):
            raise ProtocolError(f"{where}: expected {len(inner)} items")
        return tuple(c(f"{where}[{i}]", item) for i, (c, item) in enumerate(zip(inner, value, strict=True)))

    return check


def _map(where: str, value: Any) -> Any:
    if type(value) is not dict:
        raise ProtocolError(f"{where}: expected a map, got {type(value).__name__}")
    return _tree(where, value)


def _tree(where: str, value: Any, depth: int = 0) -> Any:
    """Checks that a spec is plain data of bounded depth, before `prepserver.pipeline` validates it."""
    if depth > MAX_DEPTH:
        raise ProtocolError(f"{where}: nested deeper than {MAX_DEPTH}")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ProtocolError(f"{where}: {value} is not a finite number")
        return value
    if type(value) in (list, tuple):
        return [_tree(f"{where}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise ProtocolError(f"{where}: key {_shown(key)} is not a string")
            if len(key) > MAX_KEY_CHARS:
                raise ProtocolError(f"{where}: a key of {len(key)} characters, at most {MAX_KEY_CHARS}")
        return {key: _tree(f"{where}.{key}", item, depth + 1) for key, item in value.items()}
    raise ProtocolError(f"{where}: {type(value).__name__} is not allowed here")
