"""How an op moves the plane that an image lies on, as data: for what moves along, such as masks.

An op that moves pixels says so once; each kind of data that lies on the plane knows how it follows a move.
"""

from __future__ import annotations

from typing import NamedTuple

ROWS, COLUMNS = 0, 1


class Cut(NamedTuple):
    """A window of the plane, which may reach beyond it.

    Attributes:
        top: First row; negative above the plane.
        left: First column; negative beside the plane.
        height: Rows.
        width: Columns.
        mode: What is beyond the plane; see `Pad`.
        fill: See `Pad`.
    """

    top: int
    left: int
    height: int
    width: int
    mode: str = "constant"
    fill: tuple[float, ...] = (0.0,)


class Scale(NamedTuple):
    """Another size.

    Attributes:
        height: Rows afterwards.
        width: Columns afterwards.
    """

    height: int
    width: int


class Mirror(NamedTuple):
    """The plane turned round.

    Attributes:
        axis: `ROWS`: top and bottom change places; `COLUMNS`: left and right.
    """

    axis: int


Move = Cut | Scale | Mirror
