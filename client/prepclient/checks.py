"""Checks of one argument each, beside those of `prepserver.pipeline.checks`.

They return the value in its type, or raise `SpecError` with its name and limits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from prepserver.pipeline.errors import SpecError

MOST_S = 1e9  # longest wait that can be asked for
LEAST_TIMEOUT_S = 1e-3


def boolean(field: str, value: object) -> bool:
    """The value as a bool: True, False, 1, 0, or one of numpy's."""
    if not isinstance(value, bool | int | np.bool_) or value not in (False, True):
        raise SpecError(field, value, "True or False")
    return bool(value)


def path(field: str, value: object) -> str:
    """The value as the text of a path."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise SpecError(field, value, "a path")
    return os.fsdecode(value)


def names(field: str, value: object, example: str) -> tuple[str, ...]:
    """The value as a tuple of names: one name or a sequence of them."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(name, str) and name for name in found):
        raise SpecError(field, value, f"a name or a sequence of names, such as {example!r}")
    return tuple(found)
