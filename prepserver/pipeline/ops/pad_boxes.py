"""`PadBoxes`: room for a fixed number of boxes."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import BoxCount, Boxes, Keypoints, Kind, PerBox
from prepserver.pipeline.op import BoxOp
from prepserver.pipeline.record import Columns

COUNT = "count"  # the column that says how many boxes a row holds


class PadBoxes(BoxOp):
    """Give each row room for `n` boxes and what belongs to each.

    A new column ``count``, int64, says how many it holds. Places after the last box are filled with 0 for boxes and
    keypoints, and with -1 for labels and other numbers.

    Attributes:
        n: Number of boxes in a row, 1 to 10000; further boxes are left out.
        keep: Which boxes stay if there are more: "first", the default, those that the dataset names first; "largest",
            those with the largest area. They keep their order.
    """

    takes_any_form = True

    def __init__(self, n: int, keep: str = "first") -> None:
        self.n = checks.integer("n", n, 1, 10_000)
        self.keep = checks.choice("keep", keep, ("first", "largest"))

    def after(self, columns: Columns) -> Columns:
        if COUNT in columns:
            raise SpecError("n", self.n, f"there is a column {COUNT} already: pad boxes once, in a record without one")
        return {**super().after(columns), COUNT: BoxCount()}

    def kind_after(self, kind: Kind) -> Kind:
        if isinstance(kind, Boxes | PerBox) or (isinstance(kind, Keypoints) and kind.is_per_box):
            return replace(kind, count=self.n)
        return kind
