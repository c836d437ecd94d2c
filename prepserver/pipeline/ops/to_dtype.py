"""`ToDtype`: another dtype."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class ToDtype(Op):
    """Convert the image to another dtype. Floats do not become uint8 again.

    Attributes:
        dtype: "uint8", "float16" or "float32", or torch's own, such as ``torch.float32``.
        scale: From uint8 to float, divide by 255, so that 1.0 is white. False by default, as in torchvision.
    """

    def __init__(self, dtype: object = "uint8", scale: bool = False) -> None:
        # torch.float32 prints as its name; this package does not import torch.
        name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
        self.dtype = checks.choice("dtype", name, checks.DTYPES)
        self.scale = checks.flag("scale", scale)

    def image_after(self, image: Image) -> Image:
        if self.dtype == "uint8" and image.dtype != "uint8":
            raise SpecError("dtype", self.dtype, f"cannot follow {image.dtype}: leave the floats out instead")
        if image.dtype != "uint8" or self.dtype == "uint8":
            return replace(image, dtype=self.dtype)
        return replace(image, dtype=self.dtype, top=1.0 if self.scale else 255.0)
