"""`RandomIoUCrop`: a random part that shows enough of a box."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import BoxOp

_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


class RandomIoUCrop(BoxOp):
    """A random part of the image that shows enough of at least one box, as SSD is trained.

    Boxes whose middle lies outside become 0; `SanitizeBoxes` removes them. An image without boxes stays as it is, and
    so does one for which 50 options in a row give no part.

    Attributes:
        min_scale: Least share of the image's height and width.
        max_scale: Greatest share of them.
        min_aspect_ratio: Least width / height.
        max_aspect_ratio: Greatest width / height.
        sampler_options: Least intersection over union of a box and the part; one of these is chosen for each sample. 1
            or more leaves the image as it is. None for 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: Parts that are tried for an option before another is chosen.
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
        options = checks.items("sampler_options", sampler_options or _OPTIONS, range(1, 33))
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
