"""Checks of one argument each: they return the value in its type, or raise `InvalidSpec`, naming value and limits."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from prepclient.errors import InvalidSpec
from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.errors import SpecError


def choice(field: str, value: object, allowed: Sequence[object]) -> None:
    """Refuses a value that is none of `allowed`.

    Raises:
        InvalidSpec: Naming field, value and choices.
    """
    if value not in allowed:
        raise invalid(field, value, "one of " + ", ".join(map(repr, allowed)))


def whole(field: str, value: object, low: int, high: int) -> int:
    """The value, of any integer type, as an int in [low, high].

    Raises:
        InvalidSpec: Naming the field, the value and the limits.
    """
    try:
        return integer(field, value, low, high)
    except SpecError as e:
        raise invalid(field, value, f"a whole number in [{low}, {high}]") from e


def flag(field: str, value: object) -> bool:
    """The value, True or False as Python, numpy or 0 and 1 spell them.

    Raises:
        InvalidSpec: Naming field and value.
    """
    if not isinstance(value, bool | int | np.bool_) or value not in (False, True):
        raise invalid(field, value, "True or False")
    return bool(value)


def seconds(field: str, value: object, *, above_zero: bool = False) -> float:
    """The value, a number of seconds.

    Raises:
        InvalidSpec: Naming field, value and limits.
    """
    try:
        found = number(field, value, 0.0, 1e9)
        if found > 0 or not above_zero:
            return found
    except SpecError:
        pass
    raise invalid(field, value, f"seconds, {'more than' if above_zero else 'at least'} 0 and at most 1e9")


def invalid(field: str, value: object, reason: str) -> InvalidSpec:
    """The error of an argument."""
    return InvalidSpec(str(SpecError(field, value, reason)), field)


def path(field: str, value: object) -> str:
    """The value, a path.

    Raises:
        InvalidSpec: Naming field and value.
    """
    if not isinstance(value, str | os.PathLike):
        raise invalid(field, value, "a path")
    return os.fsdecode(value)


def names(field: str, value: object, example: str) -> tuple[str, ...]:
    """The value, one name or a sequence of them.

    Raises:
        InvalidSpec: Naming field and value.
    """
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(name, str) and name for name in found):
        raise invalid(field, value, f"a name, or several, such as {example!r}")
    return tuple(found)
