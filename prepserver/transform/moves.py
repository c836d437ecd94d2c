"""How an op moves the plane that an image lies on, as data.

An op that moves pixels says so once; each kind of data on the plane, such as masks, knows how it follows a move. An op
that changes boxes takes its place among the moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prepserver.transform.elastic import Field
    from prepserver.transform.objects import Objects

ROWS, COLUMNS = 0, 1


class Cut(NamedTuple):
    """A window of the plane from (top, left), which may be negative; see `Pad` for `mode` and `fill`."""

    top: int
    left: int
    height: int
    width: int
    mode: str = "constant"
    fill: tuple[float, ...] = (0.0,)


class Scale(NamedTuple):
    """Another size, in pixels."""

    height: int
    width: int


class Mirror(NamedTuple):
    """The plane mirrored: `ROWS` swaps top and bottom, `COLUMNS` swaps left and right."""

    axis: int


class Warp(NamedTuple):
    """The plane seen through a matrix: turned, sheared, scaled, shifted, in perspective.

    Attributes:
        matrix: (a, b, c, d, e, f, g, h). The point (x, y) of the new plane shows the point
            ((a x + b y + c) / w, (d x + e y + f) / w) of the old one, with w = g x + h y + 1. Pixel 0 reaches from 0 to
            1.
        height: Rows afterwards.
        width: Columns afterwards.
        fill: Value where the old plane has no point; see `Pad`.
    """

    matrix: tuple[float, ...]
    height: int
    width: int
    fill: tuple[float, ...] = (0.0,)


class Displace(NamedTuple):
    """Each pixel of the plane moved a little; its size stays.

    Attributes:
        field: Where each pixel looks.
        fill: Value where the old plane has no point; see `Pad`.
    """

    field: Field
    fill: tuple[float, ...] = (0.0,)


Change = Callable[["Objects"], "Objects"]
"""What an op does to boxes and to what there is for each of them, and to nothing else."""

Move = Cut | Scale | Mirror | Warp | Displace | Change
