"""Checks of single parameters: each returns the canonical value or raises `SpecError`, which names the parameter.

A spec is checked in the client where it is written, and again in the daemon where it arrives. The `field`
of a check is the name of the parameter that the error blames. `fill_fits`, `as_held` and `mean_fits` compare a
parameter with the image that it applies to; all others know types and ranges only.
"""

from __future__ import annotations

import math
import numbers
import operator
import struct
from collections.abc import Sequence
from enum import Enum

from prepserver.pipeline.errors import SpecError

Floats = Sequence[float]
FloatOrFloats = float | Floats
Ints = Sequence[int]
IntOrInts = int | Ints
Interpolation = str | Enum
"""The name of a way to interpolate between pixels, or torchvision's ``InterpolationMode`` of that name."""

INTERPOLATIONS = ("bilinear", "bicubic")
WARPS = ("nearest", "bilinear")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
DTYPES = ("uint8", "float16", "float32")
WHOLE_TOPS = {"uint8": 255, "uint16": 65535, "int16": 32767}
"""Element types of images that are whole numbers, and the greatest of each."""

MAX_CHANNELS = 1024
EACH_CHANNEL = range(1, MAX_CHANNELS + 1)  # how many numbers there may be where each channel has its own

MAX_CODE_CHARS = 64
MAX_COLUMN_CHARS = 24
"""Longest name of a column: a field's name in a ring has 32 characters, and views append a number."""

MAX_TOKENS = 1 << 20

MAX_SIDE_PX = 16384  # longest side that a spec may ask for: beyond it one uint8 RGB row would pass 800 MB


def integer(field: str, value: object, low: int, high: int) -> int:
    """Return `value`, of any integer type (also numpy's and torch's) but bool, as an int within [low, high]."""
    try:
        if isinstance(value, bool):
            raise TypeError
        result = operator.index(value)  # type: ignore[arg-type]  # the TypeError is the answer
    except TypeError:
        raise SpecError(field, value, "must be an integer") from None
    if not low <= result <= high:
        raise SpecError(field, value, f"must lie between {low} and {high}")
    return int(result)


def number(field: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a finite float within [low, high]; 1 and 1.0 become the same, -0.0 becomes 0.0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy's numbers are Real
        raise SpecError(field, value, "must be a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise SpecError(field, value, "must be finite")
    if not low <= result <= high:
        limits = f"be at least {low:g}" if math.isinf(high) else f"lie between {low:g} and {high:g}"
        raise SpecError(field, value, f"must {limits}")
    return result + 0.0


def flag(field: str, value: object) -> bool:
    """Return `value`, which must be a bool."""
    if not isinstance(value, bool):
        raise SpecError(field, value, "must be true or false")
    return value


def choice(field: str, value: object, options: Sequence[str]) -> str:
    """Return `value`, which must be one of `options`."""
    if not isinstance(value, str) or value not in options:
        raise SpecError(field, value, "must be " + " or ".join(repr(option) for option in options))
    return value


def name(field: str, value: object) -> str:
    """Return the name of a column: an identifier of at most `MAX_COLUMN_CHARS`."""
    if not isinstance(value, str) or not value.isidentifier() or len(value) > MAX_COLUMN_CHARS:
        reason = f"must be the name of a column: an identifier of at most {MAX_COLUMN_CHARS} characters"
        raise SpecError(field, value, reason)
    return value


def code(value: object) -> str:
    """Return the parameter ``code``: the hex digest of a plug-in's code or of a file; empty for any."""
    if not isinstance(value, str) or len(value) > MAX_CODE_CHARS or not (value.isalnum() or not value):
        raise SpecError("code", value, "must be a digest, as `prepserver status --json` shows it, or empty")
    return value


def interpolation(field: str, value: object, options: Sequence[str] = INTERPOLATIONS) -> str:
    """Return the name of a way to resize or to warp: the name itself, or a torchvision ``InterpolationMode``."""
    return choice(field, value.value if isinstance(value, Enum) else value, options)


def probability(value: object) -> float:
    """Return the parameter ``p``, a number from 0 to 1."""
    return number("p", value, 0.0, 1.0)


def spread(field: str, value: object, low: float, high: float) -> tuple[float, float]:
    """Return (least, greatest) within [low, high]; one number v means from -v to v, as torchvision's angles."""
    if isinstance(value, list | tuple):
        return number_range(field, value, low, high)
    reach = number(field, value, 0.0, high)
    return 0.0 - reach, reach


def antialias(value: object) -> None:
    """Accept torchvision's ``antialias=True``."""
    if value is not True:
        raise SpecError("antialias", value, "must be True: images are always resized with antialiasing")


def items(field: str, value: object, lengths: Sequence[int]) -> tuple[object, ...]:
    """Return the items of a list or tuple of one of `lengths`."""
    if not isinstance(value, list | tuple) or len(value) not in lengths:
        wanted = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 3 else " or ".join(map(str, lengths))
        raise SpecError(field, value, f"must be a list of {wanted} values")
    return tuple(value)


def items_or_one(field: str, value: object, lengths: Sequence[int]) -> tuple[object, ...]:
    """Return the items of a list or tuple of one of `lengths`, or any other value as the only item."""
    return items(field, value, lengths) if isinstance(value, list | tuple) else (value,)


def number_range(field: str, value: object, low: float, high: float) -> tuple[float, float]:
    """Return (least, greatest), two numbers within [low, high], in that order."""
    first, second = (number(field, item, low, high) for item in items(field, value, (2,)))
    if first > second:
        raise SpecError(field, value, "must be (least, greatest)")
    return first, second


def point(field: str, value: object) -> tuple[float, float] | None:
    """Return (x, y) in pixels, or None."""
    if value is None:
        return None
    x, y = (number(field, item, -MAX_SIDE_PX, MAX_SIDE_PX) for item in items(field, value, (2,)))
    return x, y


def pairs(field: str, value: object, count: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of places among `count`, at most as many."""
    found = []
    for pair in items(field, value, range(count + 1)) if isinstance(value, list | tuple) else (value,):
        one, other = (integer(field, place, 0, count - 1) for place in items(field, pair, (2,)))
        found.append((one, other))
    return tuple(found)


def tokens(field: str, value: object) -> int:
    """Return a number of tokens, 1 to `MAX_TOKENS`."""
    return integer(field, value, 1, MAX_TOKENS)


def side(field: str, value: object) -> int:
    """Return a length in pixels, 1 to `MAX_SIDE_PX`."""
    return integer(field, value, 1, MAX_SIDE_PX)


def channels(field: str, value: object) -> int:
    """Return a number of channels, 1 or 3."""
    if integer(field, value, 1, 3) == 2:
        raise SpecError(field, value, "must be 1 or 3")
    return integer(field, value, 1, 3)


def size(field: str, value: object) -> tuple[int, int]:
    """Return (height, width); one int, alone or in a list, means a square (as torchvision's crops)."""
    sides = [side(field, item) for item in items_or_one(field, value, (1, 2))]
    return sides[0], sides[-1]


def padding(field: str, value: object) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) from torchvision's one, two (left/right, top/bottom) or four values."""
    sides = [integer(field, item, 0, MAX_SIDE_PX) for item in items_or_one(field, value, (1, 2, 4))]
    left, top = sides[0], sides[1 % len(sides)]
    return left, top, sides[2 % len(sides)], sides[3 % len(sides)]


def fill(field: str, value: object) -> tuple[float, ...]:
    """Return the colour of padding: one number for all channels, or one for each; None means 0."""
    if value is None:
        return (0.0,)
    return tuple(number(field, item) for item in items_or_one(field, value, EACH_CHANNEL))


def mask_fill(value: object) -> int | None:
    """Return the parameter ``mask_fill``, a class from 0 to 65535; None for that which follows from the fill."""
    return None if value is None else integer("mask_fill", value, 0, 65535)


def fill_fits(fill: tuple[float, ...], channels: int, dtype: str, field: str = "fill") -> None:
    """Refuse a fill that the image cannot hold: for other channels, or with values beyond its dtype."""
    if len(fill) not in (1, channels):
        raise SpecError(field, fill, f"must have 1 value or one for each of {channels} channels")
    top = WHOLE_TOPS.get(dtype)
    if top is None:
        as_held(field, fill, dtype)
        return
    least = -top - 1 if dtype == "int16" else 0
    if any(value != int(value) or not least <= value <= top for value in fill):
        raise SpecError(field, fill, f"must be whole numbers from {least} to {top} while the image is {dtype}")


def as_held(field: str, values: Sequence[float], dtype: str) -> tuple[float, ...]:
    """Return values rounded to float16 or float32; refuse those that would become infinite."""
    form = f"<{len(values)}{'e' if dtype == 'float16' else 'f'}"
    try:
        return struct.unpack(form, struct.pack(form, *values))
    except OverflowError:
        raise SpecError(field, list(values), f"is too large for {dtype}") from None


def mean_fits(field: str, mean: Sequence[float], top: float | None) -> None:
    """Refuse means of values up to 255 for an image whose greatest value, `top`, is 1; None if that is unknown."""
    if top == 1.0 and max(mean) > 1.0:
        reason = "the values lie in [0, 1] here, so no mean is above 1: divide means and stds by 255"
        raise SpecError(field, list(mean), reason)
