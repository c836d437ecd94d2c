"""`CopyPaste`: objects of another sample, pasted onto this one."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Mask, PerBox
from prepserver.pipeline.op import MixOp
from prepserver.pipeline.record import Record


class CopyPaste(MixOp):
    """Objects of another sample, both drawn at random, pasted onto this one: simple copy-paste (Ghiasi et al., 2021).

    The other one comes from the whole source, and ops before this one, which must give all images one size, are done to
    both. Of its n objects, those are pasted that n draws with replacement hit, as in torchvision's reference scripts.
    An object comes with its box, its points and its numbers. Objects of the sample itself that it hides are removed;
    of one that it hides in part, the box becomes the one around the pixels that are left. Edges are not blended.

    It needs a mask of instances, which says for each pixel which object it shows, and so at most 255 objects that do
    not overlap: beyond that number, no more are pasted. Objects are numbered anew, from 1, and pixels without one are 0
    afterwards. An object without pixels has the number 0; it is not pasted, and stays where it is.

    Attributes:
        mask: The column with the mask of instances. Other masks get the pasted pixels, too.
        instances: The column with the number that each box has in the mask, 1 to 255; 0 if it has no pixels.
    """

    partners = 1

    def __init__(self, mask: str = "mask", instances: str = "instances") -> None:
        self.mask = checks.name("mask", mask)
        self.instances = checks.name("instances", instances)

    def after(self, record: Record) -> Record:
        for field, column, kind in (("mask", self.mask, Mask), ("instances", self.instances, PerBox)):
            if not isinstance(record.get(column), kind):
                there = ", ".join(f"{name} ({type(each).__name__})" for name, each in record.items())
                reason = (
                    "needs a mask with the number of an object for each pixel, and that number for each box: "
                    f"Coco(masks=True) gives both. {column!r} is no {kind.__name__} here; there are: {there}"
                )
                raise SpecError(field, column, reason)
        plane, numbers = record[self.mask], record[self.instances]
        if isinstance(plane, Mask) and plane.size is None:
            reason = "needs one size: put ScaleJitter and RandomCrop(size, pad_if_needed=True), or Resize, before it"
            raise SpecError("op", "CopyPaste", reason)
        if isinstance(numbers, PerBox) and numbers.dtype == "int8":
            raise SpecError("instances", self.instances, "is int8, which cannot count to 255: use int16 or more")
        return super().after(record)
