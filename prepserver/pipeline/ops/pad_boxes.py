"""`PadBoxes`: a row for any number of boxes."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import BoxCount, Boxes, Keypoints, Kind, PerBox
from prepserver.pipeline.op import BoxOp
from prepserver.pipeline.record import Record

COUNT = "count"
"""The column that says how many boxes a row holds."""


class PadBoxes(BoxOp):
    """Room for `n` boxes in each row, with what there is for each box, and a column ``count``.

    Beyond the last box, boxes and keypoints are 0, and labels and other numbers are -1.

    Attributes:
        n: Most boxes of a row, up to 10,000; further ones are left out.
        keep: Which boxes are left out: with "first", the default, those that the dataset names last; with "largest" the
            smallest ones. The others stay in their order.
    """

    takes_any_form = True

    def __init__(self, n: int, keep: str = "first") -> None:
        self.n = checks.integer("n", n, 1, 10_000)
        self.keep = checks.choice("keep", keep, ("first", "largest"))

    def after(self, record: Record) -> Record:
        if COUNT in record:
            raise SpecError("n", self.n, f"there is a column {COUNT} already: pad boxes once, in a record without one")
        return {**super().after(record), COUNT: BoxCount()}

    def kind_after(self, kind: Kind) -> Kind:
        if isinstance(kind, Boxes | PerBox) or (isinstance(kind, Keypoints) and kind.is_per_box):
            return replace(kind, count=self.n)
        return kind
