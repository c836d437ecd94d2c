"""`PadKeypoints`: room for a fixed number of points."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Keypoints, Kind
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns


class PadKeypoints(Op):
    """Give each row room for `n` points. x, y and visibility are 0 after the last one.

    It is for points without boxes, such as landmarks; `PadBoxes` makes room for the points of boxes.

    Attributes:
        n: Number of points in a row, 1 to 10000; further points are left out.
    """

    nests = False

    def __init__(self, n: int) -> None:
        self.n = checks.integer("n", n, 1, 10_000)

    def after(self, columns: Columns) -> Columns:
        found = super().after(columns)
        if found == columns:
            raise SpecError("n", self.n, "needs keypoints without boxes, of any number; PadBoxes(n) is for boxes")
        return found

    def kind_after(self, kind: Kind) -> Kind:
        if isinstance(kind, Keypoints) and not kind.is_per_box:
            return replace(kind, count=self.n)
        return kind
