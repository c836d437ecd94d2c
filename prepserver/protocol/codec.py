"""Messages to bytes and back: msgpack maps of bounded size, with the message's name under ``t``.

They are maps and not arrays, so that a later release can add a field without moving the others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import msgpack

from prepserver.protocol.schema import ProtocolError, build

MAX_MESSAGE_BYTES = 64 * 1024
"""More than any honest message needs: a batch announcement has about 40 bytes, a pipeline a few hundred."""


def _no_ext(code: int, _data: bytes) -> Any:
    raise ProtocolError(f"msgpack extension type {code} is not allowed")


def _map_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ProtocolError("a key appears twice in one map")
    return made


def encode(message: Any) -> bytes:
    """The wire form of a message, without the fields that have their default value.

    So a client sends a new field of a question only if it uses it: older daemons refuse fields that they do not know.

    Raises:
        ProtocolError: It is larger than `MAX_MESSAGE_BYTES`, or msgpack cannot hold a value.
    """
    name, defaults = _shape(type(message))  # type: ignore[arg-type]
    fields: dict[str, Any] = {"t": name}
    for each, default in defaults:
        value = getattr(message, each)
        if value != default:
            fields[each] = value
    try:
        data: bytes = msgpack.packb(fields)
    except (OverflowError, ValueError, TypeError) as e:
        raise ProtocolError(f"{type(message).__name__} cannot be sent: {e}") from e
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{type(message).__name__} has {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    return data


@functools.cache
def _shape(cls: type) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The name of a message, and for each field its name and its default."""
    missing = dataclasses.MISSING
    return cls.__name__, tuple(
        (f.name, f.default if f.default_factory is missing else f.default_factory()) for f in dataclasses.fields(cls)
    )


def decode(data: bytes | memoryview, allowed: Mapping[str, type]) -> Any:
    """The message in `data`, which is one of `allowed` (name to class), with every field checked.

    Raises:
        ProtocolError: Not msgpack, too large, an unknown message, or a field that breaks its schema.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    try:
        fields = msgpack.unpackb(
            data, raw=False, strict_map_key=True, ext_hook=_no_ext, object_pairs_hook=_map_once, timestamp=0
        )
    except ProtocolError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as e:
        raise ProtocolError(f"not a msgpack message: {type(e).__name__}: {e}") from e
    if type(fields) is not dict:
        raise ProtocolError(f"expected a map, got {type(fields).__name__}")
    name = fields.pop("t", None)
    cls = allowed.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"unknown message {str(name)[:40]!r}; expected one of {', '.join(sorted(allowed))}")
    return build(cls, fields)


def registry(*classes: type) -> dict[str, type]:
    """The `allowed` of `decode` for one direction of one channel."""
    return {c.__name__: c for c in classes}
