"""`AugMix`: the image mixed with changed ones."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class AugMix(Op):
    """Mix the image with random chains of changes of itself. Masks stay as they are: what is mixed has no one shape.

    Attributes:
        severity: How strong the changes are, 1 to 10.
        mixture_width: How many chains, 1 to 32.
        chain_depth: Changes in a chain, at most 32; -1 draws 1 to 3 for each chain.
        alpha: Of the Dirichlet and Beta distributions of the weights, above 0.
        all_ops: Change brightness, contrast, colour and sharpness, too.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each. None means 0.
    """

    needs_uint8 = True

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: checks.Interpolation = "bilinear",
        fill: checks.FloatOrFloats | None = None,
    ) -> None:
        self.severity = checks.integer("severity", severity, 1, 10)
        self.mixture_width = checks.integer("mixture_width", mixture_width, 1, 32)
        self.chain_depth = checks.integer("chain_depth", chain_depth, -1, 32) or -1
        self.alpha = checks.number("alpha", alpha, 1e-3, 1e3)
        self.all_ops = checks.flag("all_ops", all_ops)
        self.interpolation = checks.interpolation("interpolation", interpolation, checks.WARPS)
        self.fill = checks.fill("fill", fill)
