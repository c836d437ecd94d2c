"""`RandomErasing`: a rectangle erased at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import ChanceOp


class RandomErasing(ChanceOp):
    """Erase a random rectangle of each image, with probability `p` (Zhong et al., 2020).

    Masks and boxes stay as they are. `value` has the unit that the image has at this place. torchvision's recipes erase
    after Normalize, where 0 is the mean colour. Before it, while the image is uint8 (usual here, because the client
    normalizes), 0 is black, and ``value=(124, 116, 104)`` is ImageNet's mean. An image stays whole if ten draws give no
    rectangle that fits into it.

    Attributes:
        p: Probability, 0 to 1.
        scale: Range of the rectangle's share of the image's area, within 0 to 1.
        ratio: Range of the rectangle's height / width, 0.001 to 1000; drawn log-uniformly.
        value: One for all channels, or one for each. "random" draws each value: normally distributed with mean 0 and
            standard deviation 1 for floats, uniformly from 0 to 255 for uint8.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: checks.Floats = (0.02, 0.33),
        ratio: checks.Floats = (0.3, 3.3),
        value: checks.FloatOrFloats | str = 0,
    ) -> None:
        if isinstance(value, str) and value != "random":
            raise SpecError("value", value, 'must be a number, one for each channel, or "random"')
        super().__init__(p)
        self.scale = checks.number_range("scale", scale, 0.0, 1.0)
        self.ratio = checks.number_range("ratio", ratio, 1e-3, 1e3)
        self.value = value if isinstance(value, str) else checks.fill("value", value)

    def image_after(self, image: Image) -> Image:
        if not isinstance(self.value, str):
            checks.fill_fits(self.value, image.channels, image.dtype, "value")
        elif image.dtype in ("uint16", "int16"):
            raise SpecError("value", self.value, f"is for uint8 and floats, and the image is {image.dtype}")
        return image
