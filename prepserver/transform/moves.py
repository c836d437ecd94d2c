"""How an op moves the plane that an image lies on, as data.

An op that moves pixels says so once; each kind of data on the plane, such as masks, knows how it follows a move. An op
that changes boxes takes its place among the moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from prepserver.pipeline.affine import Matrix

if TYPE_CHECKING:
    from prepserver.transform.elastic import Displacements
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
    """The plane seen through a matrix: turned, sheared, scaled, shifted, in perspective."""

    matrix: Matrix  # which point of the old plane each point shows
    height: int  # rows afterwards
    width: int  # columns afterwards
    fill: tuple[float, ...] = (0.0,)  # value where the old plane has no point; see `Pad`


class Displace(NamedTuple):
    """Each pixel of the plane moved a little; its size stays."""

    field: Displacements  # where each pixel looks
    fill: tuple[float, ...] = (0.0,)  # value where the old plane has no point; see `Pad`


BoxChange = Callable[["Objects"], "Objects"]
"""What an op does to boxes and the values that belong to them, and to nothing else."""

Move = Cut | Scale | Mirror | Warp | Displace | BoxChange
