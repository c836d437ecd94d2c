"""`AutoAugment`: a random pair of changes from a learned policy."""

from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.op import WarpOp


class AutoAugment(WarpOp):
    """Apply one of the 25 pairs of changes that AutoAugment (Cubuk et al., 2019) learned for a dataset.

    The image is uint8 and keeps its size. Masks, boxes and keypoints follow the changes of geometry.

    Attributes:
        policy: "imagenet", "cifar10" or "svhn", or torchvision's ``AutoAugmentPolicy`` of that name.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        mask_fill: As in `Pad`.
    """

    needs_uint8 = True

    def __init__(
        self,
        policy: str | Enum = "imagenet",
        interpolation: checks.Interpolation = "nearest",
        fill: checks.FloatOrFloats | None = None,
        mask_fill: int | None = None,
    ) -> None:
        name = policy.value if isinstance(policy, Enum) else policy
        self.policy = checks.choice("policy", name, ("imagenet", "cifar10", "svhn"))
        super().__init__(interpolation, fill, mask_fill)
