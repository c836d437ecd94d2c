"""The base of kinds that follow an image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from prepserver.pipeline.kinds import Kind, Size
from prepserver.transform.moves import Move
from prepserver.transform.stage import Array, Box


class Follower(ABC):
    """One sample's value of a column that lies on an image's plane; opened once for all lanes and views.

    Values for each box follow with the boxes.

    Args:
        values: What the source gives, by column.
        kinds: What it declares, by column.

    Raises:
        BadSample: A value cannot be.
    """

    kind: ClassVar[type[Kind]]
    size: Size | None  # (height, width) in pixels of the plane that the value claims to lie on; None if it claims none

    @abstractmethod
    def __init__(self, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None: ...

    @abstractmethod
    def moved(self, size: Size, moves: Sequence[Move]) -> dict[str, Any]:
        """Return the values after the moves, by column, as a source would give them; arguments and errors as `make`."""

    @classmethod
    @abstractmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]], canvas: Size, places: Sequence[Box]) -> dict[str, Any]:
        """Return the values of several planes side by side on a canvas.

        Args:
            parts: What `moved` returns for each.
            canvas: (height, width) in pixels.
            places: Where each plane lies on it.
        """

    @abstractmethod
    def make(self, size: Size, moves: Sequence[Move], outs: Mapping[str, Array]) -> None:
        """Write the values after the moves to a row.

        Args:
            size: (height, width) in pixels of the plane before the moves.
            moves: In order.
            outs: By column, with the fields' shapes and dtypes.

        Raises:
            BadSample: The value cannot be decoded.
        """
