"""`ToLayout`: the order of the axes in a row."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class ToLayout(Op):
    """Set how a row stores an image and how batches show it; the last op of a pipeline.

    Without it, a row stores (H, W, C) and batches show (C, H, W): torch's channels_last, at no cost.

    Attributes:
        layout: "CHW" stores and shows (C, H, W); "HWC" stores and shows (H, W, C).
    """

    nests = False

    def __init__(self, layout: str = "CHW") -> None:
        self.layout = checks.choice("layout", layout, ("CHW", "HWC"))

    def image_after(self, image: Image) -> Image:
        return replace(image, layout=self.layout)
