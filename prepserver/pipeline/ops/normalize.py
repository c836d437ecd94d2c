"""`Normalize`: mean and standard deviation removed."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class Normalize(Op):
    """Compute (value - mean) / std for each channel, in the image's dtype.

    The image is float: put `ToDtype` before it.

    Attributes:
        mean: One for all channels, or one for each, in the unit that the image has before this op.
        std: As `mean`; above 0, and not so small that it rounds to 0 in the image's dtype.
    """

    def __init__(self, mean: checks.Floats, std: checks.Floats) -> None:
        self.mean = tuple(checks.number("mean", value) for value in checks.items("mean", mean, checks.EACH_CHANNEL))
        self.std = tuple(checks.number("std", value) for value in checks.items("std", std, checks.EACH_CHANNEL))
        if min(self.std) <= 0.0:
            raise SpecError("std", std, "must be above 0")

    def image_after(self, image: Image) -> Image:
        if image.dtype in checks.WHOLE_TOPS:
            scale = ", scale=True" if image.dtype == "uint8" else ""
            reason = f"Normalize needs floats: put ToDtype('float32'{scale}) before it"
            raise SpecError("mean", list(self.mean), reason)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, image.channels):
                raise SpecError(name, list(values), f"must have 1 value or one for each of {image.channels} channels")
        checks.as_held("mean", self.mean, image.dtype)
        if 0.0 in checks.as_held("std", self.std, image.dtype):
            raise SpecError("std", list(self.std), f"is 0 in {image.dtype}: the image would be divided by 0")
        checks.mean_fits("mean", self.mean, image.top)
        return replace(image, top=None)
