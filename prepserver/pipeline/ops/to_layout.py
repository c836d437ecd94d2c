"""`ToLayout`: the order of the axes in a row."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class ToLayout(Op):
    """How a row is stored and seen; the last op of a pipeline.

    Without it a row is stored as (H, W, C) and seen as (C, H, W), torch's channels_last, at no cost.

    Attributes:
        layout: "CHW" (stored and seen as C, H, W) or "HWC" (stored and seen as H, W, C).
    """

    nests = False

    def __init__(self, layout: str = "CHW") -> None:
        self.layout = checks.choice("layout", layout, ("CHW", "HWC"))

    def image_after(self, image: Image) -> Image:
        return replace(image, layout=self.layout)
