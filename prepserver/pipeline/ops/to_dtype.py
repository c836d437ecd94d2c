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
        scale: From whole numbers to floats, divide by the greatest number of the dtype (255, 65535 or 32767), so that
            1.0 is white. False by default, as in torchvision.
    """

    def __init__(self, dtype: object = "uint8", scale: bool = False) -> None:
        # torch.float32 prints as its name; this package does not import torch.
        name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
        self.dtype = checks.choice("dtype", name, checks.DTYPES)
        self.scale = checks.flag("scale", scale)

    def image_after(self, image: Image) -> Image:
        if self.dtype == "uint8" and image.dtype != "uint8":
            raise SpecError("dtype", self.dtype, f"cannot follow {image.dtype}, which holds more")
        if self.dtype == "float16" and image.dtype == "uint16" and not self.scale:
            raise SpecError(
                "dtype", self.dtype, "ends at 65504, and uint16 goes to 65535: pass scale=True or take float32"
            )
        return replace(image, dtype=self.dtype, top=1.0 if self.divisor(image) > 1 else image.top)

    def divisor(self, image: Image) -> int:
        """Return what the values of an image are divided by: 1 unless they are scaled."""
        is_scaled = self.scale and self.dtype != "uint8"
        return checks.WHOLE_TOPS.get(image.dtype, 1) if is_scaled else 1
