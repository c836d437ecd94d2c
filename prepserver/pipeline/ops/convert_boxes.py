"""`ConvertBoxes`: boxes in another format."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Boxes, Kind
from prepserver.pipeline.op import BoxOp


class ConvertBoxes(BoxOp):
    """Convert boxes to another format. It must follow all ops that move pixels or change boxes, except `PadBoxes`.

    Attributes:
        form: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre, width, height).
        normalize: Divide by the image's width and height, so that coordinates inside the image lie in 0 to 1.
    """

    def __init__(self, form: str, normalize: bool = False) -> None:
        self.form = checks.choice("form", form, ("xyxy", "xywh", "cxcywh"))
        self.normalize = checks.flag("normalize", normalize)

    def kind_after(self, kind: Kind) -> Kind:
        return replace(kind, form=self.form, normalized=self.normalize) if isinstance(kind, Boxes) else kind
