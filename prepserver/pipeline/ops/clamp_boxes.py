"""`ClampBoxes`: boxes cut at the image's edge."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.op import BoxOp


@dataclass(frozen=True, slots=True)
class ClampBoxes(BoxOp):
    """Boxes cut at the image's edge, as every crop and pad does; torchvision's ClampBoundingBoxes.

    A box that lies outside is left without width or height; `SanitizeBoxes` removes it.
    """
