"""`CopyPaste`: objects of another sample, pasted onto this one."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Mask, PerBox
from prepserver.pipeline.op import MixOp
from prepserver.pipeline.record import Columns, shown


class CopyPaste(MixOp):
    """Paste random objects of another, random sample onto this one: simple copy-paste (Ghiasi et al., 2021).

    The other sample comes from the whole source. The ops before this one apply to both samples, and must give all
    images one size. If the other sample has n objects, n draws with replacement choose those that are pasted, as in
    torchvision's reference scripts. A pasted object brings its box, its keypoints and its numbers. Objects of the
    sample that are hidden entirely are removed; one that is hidden in part gets the box around its remaining pixels.
    Edges are not blended.

    The sample needs a mask of instances: the number of an object for each pixel. It can hold 255 objects, which do not
    overlap; when they are used up, no more objects are pasted. The result numbers its objects from 1, and pixels
    without an object are 0. An object without pixels has the number 0; it stays, and is never pasted.

    Attributes:
        mask: The column with the mask of instances. Other masks get the pasted pixels, too.
        instances: The column with the number that each box has in the mask, 1 to 255; 0 if it has no pixels.
    """

    partners = 1

    def __init__(self, mask: str = "mask", instances: str = "instances") -> None:
        self.mask = checks.name("mask", mask)
        self.instances = checks.name("instances", instances)

    def after(self, columns: Columns) -> Columns:
        for field, column, kind in (("mask", self.mask, Mask), ("instances", self.instances, PerBox)):
            if not isinstance(columns.get(column), kind):
                reason = (
                    "needs a mask with the number of an object for each pixel, and that number for each box: "
                    f"Coco(masks=True) gives both. {column!r} is no {kind.__name__} here; there are: {shown(columns)}"
                )
                raise SpecError(field, column, reason)
        plane, numbers = columns[self.mask], columns[self.instances]
        if isinstance(plane, Mask) and plane.dtype != "uint8":
            raise SpecError("mask", self.mask, f"is {plane.dtype}, and must be uint8: numbers of objects go to 255")
        if isinstance(plane, Mask) and plane.size is None:
            reason = "needs one size: put ScaleJitter and RandomCrop(size, pad_if_needed=True), or Resize, before it"
            raise SpecError("op", "CopyPaste", reason)
        if isinstance(numbers, PerBox) and numbers.dtype == "int8":
            raise SpecError("instances", self.instances, "is int8, which cannot count to 255: use int16 or more")
        return super().after(columns)
