"""`ConvertBoxes`: another form of boxes."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Boxes, Kind
from prepserver.pipeline.op import BoxOp


class ConvertBoxes(BoxOp):
    """Another form of boxes; after all ops that move pixels or change boxes.

    Attributes:
        form: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (middle, width, height).
        normalize: Divide by the image's width and height, so that the image is 1 wide and 1 high.
    """

    def __init__(self, form: str, normalize: bool = False) -> None:
        self.form = checks.choice("form", form, ("xyxy", "xywh", "cxcywh"))
        self.normalize = checks.flag("normalize", normalize)

    def kind_after(self, kind: Kind) -> Kind:
        return replace(kind, form=self.form, normalized=self.normalize) if isinstance(kind, Boxes) else kind
