"""`AutoAugment`: a random pair of changes from a learned policy."""

from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.op import WarpOp


class AutoAugment(WarpOp):
    """Apply one of 25 pairs of changes that were learned for a dataset. Masks follow the changes of shape.

    Attributes:
        policy: "imagenet", "cifar10" or "svhn", or torchvision's ``AutoAugmentPolicy`` of that name.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each. None means 0.
    """

    def __init__(
        self,
        policy: str | Enum = "imagenet",
        interpolation: checks.Interpolation = "nearest",
        fill: checks.FloatOrFloats | None = None,
    ) -> None:
        name = policy.value if isinstance(policy, Enum) else policy
        self.policy = checks.choice("policy", name, ("imagenet", "cifar10", "svhn"))
        super().__init__(interpolation, fill)
