"""`AugMix`: the image blended with augmented copies of itself."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class AugMix(Op):
    """Blend the image with randomly augmented copies of itself (AugMix, Hendrycks et al., 2020).

    The image is uint8 and keeps its size. Masks, boxes and keypoints stay as they are, because the copies that are
    blended differ in their geometry.

    Attributes:
        severity: Greatest strength of a change, 1 to 10.
        mixture_width: Number of copies, each made by its own chain of changes; 1 to 32.
        chain_depth: Number of changes in each chain, 1 to 32. -1, the default, and 0 draw 1 to 3 for each chain.
        alpha: Parameter of the Dirichlet and Beta distributions that the weights come from, 0.001 to 1000.
        all_ops: Whether the changes include brightness, contrast, colour and sharpness.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
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
