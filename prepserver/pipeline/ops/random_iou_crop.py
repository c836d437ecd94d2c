"""`RandomIoUCrop`: a random crop that overlaps a box enough."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import BoxOp

_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


class RandomIoUCrop(BoxOp):
    """Crop a random part of the image that overlaps at least one box enough (SSD, Liu et al., 2016).

    Boxes whose centre lies outside the part become 0; `SanitizeBoxes` removes them. The image stays whole if it has no
    boxes, or if 50 options in a row give no such part.

    Attributes:
        min_scale: Least share of the image's height and width, 0 to 1.
        max_scale: Greatest share of them, 0 to 1.
        min_aspect_ratio: Least width / height of the part.
        max_aspect_ratio: Greatest width / height of the part.
        sampler_options: Least intersection over union of a box and the part, 1 to 32 options, of which one is drawn for
            each sample; 1 or more keeps the image whole. None for 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: Parts that are tried before another option is drawn, 1 to 1000.
    """

    moves = True
    varies = True

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: checks.Floats | None = None,
        trials: int = 40,
    ) -> None:
        options = checks.items(
            "sampler_options", _OPTIONS if sampler_options is None else sampler_options, range(1, 33)
        )
        self.min_scale = checks.number("min_scale", min_scale, 0.0, 1.0)
        self.max_scale = checks.number("max_scale", max_scale, 0.0, 1.0)
        self.min_aspect_ratio = checks.number("min_aspect_ratio", min_aspect_ratio, 0.0)
        self.max_aspect_ratio = checks.number("max_aspect_ratio", max_aspect_ratio, 0.0)
        self.sampler_options = tuple(checks.number("sampler_options", option, 0.0) for option in options)
        self.trials = checks.integer("trials", trials, 1, 1000)
        if self.min_scale > self.max_scale:
            raise SpecError("max_scale", max_scale, f"must not be below min_scale, {self.min_scale:g}")
        if self.min_aspect_ratio > self.max_aspect_ratio:
            raise SpecError("max_aspect_ratio", max_aspect_ratio, "must not be below min_aspect_ratio")
