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

    It is made from what the source gives and declares, by column. Values for each box follow with the boxes.

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
        """Return the values of several planes side by side on a canvas, (height, width) in pixels, at their `places`.

        `parts` has what `moved` returns for each.
        """

    @abstractmethod
    def make(self, size: Size, moves: Sequence[Move], outs: Mapping[str, Array]) -> None:
        """Write the values after the moves to a row; `size` is the (height, width) of the plane before them, in pixels.

        `outs` has by column what to write to, with the fields' shapes and dtypes.

        Raises:
            BadSample: The value cannot be decoded.
        """
