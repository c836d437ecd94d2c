"""`AutoAugment`: a random pair of changes from a learned policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class AutoAugment(Op):
    """Apply one of 25 pairs of changes that were learned for a dataset. Masks follow the changes of shape.

    Attributes:
        policy: "imagenet", "cifar10" or "svhn", or torchvision's ``AutoAugmentPolicy`` of that name.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each. None means 0.
    """

    moves = True
    needs_uint8 = True

    policy: str
    interpolation: str
    fill: tuple[float, ...]

    def __init__(
        self,
        policy: str | Enum = "imagenet",
        interpolation: str | Enum = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        name = policy.value if isinstance(policy, Enum) else policy
        self._keep(
            policy=checks.choice("policy", name, ("imagenet", "cifar10", "svhn")),
            interpolation=checks.interpolation("interpolation", interpolation, checks.WARPS),
            fill=checks.fill("fill", fill),
        )
