"""What all kinds that follow an image have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from prepserver.pipeline.kinds import Kind, Size
from prepserver.transform.moves import Move
from prepserver.transform.stage import Array


class Follower(ABC):
    """One sample's value of a column that lies on an image's plane; opened once for all lanes and views.

    Args:
        value: What the source gives.

    Attributes:
        kind: The column's kind.
    """

    kind: ClassVar[type[Kind]]

    @abstractmethod
    def __init__(self, value: Any) -> None: ...

    @property
    @abstractmethod
    def size(self) -> Size | None:
        """(height, width) in pixels of the plane that the value claims to lie on; None if it claims none."""

    @abstractmethod
    def make(self, moves: Sequence[Move], out: Array) -> None:
        """Write the value after the moves, in order, to the row `out`, which has the field's shape and dtype.

        Raises:
            BadSample: The value cannot be decoded.
        """
