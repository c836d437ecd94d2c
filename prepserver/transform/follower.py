"""What every kind that follows an image has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from prepserver.pipeline.kinds import Kind, Size
from prepserver.transform.moves import Move
from prepserver.transform.stage import Array


class Follower(ABC):
    """One sample's value of a column that lies on an image's plane.

    It is opened once for a sample and asked by every lane and view. Subclasses take the value as the source gives it.

    Attributes:
        kind: Of the column.
    """

    kind: ClassVar[type[Kind]]

    @abstractmethod
    def __init__(self, value: Any) -> None: ...

    @property
    @abstractmethod
    def size(self) -> Size | None:
        """(height, width) of the plane that it says it lies on, in pixels; None where it says none."""

    @abstractmethod
    def make(self, moves: Sequence[Move], out: Array) -> None:
        """Write the value as the moves leave it.

        Args:
            moves: In order.
            out: The row, of the field's shape and dtype.

        Raises:
            BadSample: The value cannot be decoded.
        """
