"""`CutMix`: replaces a rectangle of each image by that of another sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prepclient.device_ops._mixing import Mixed, Mixing, MixingOnBatch, beta


class CutMix(Mixing):
    """Replaces a rectangle of each image of a batch by that of the image before it. Only for `device_ops`.

    Labels become weights of classes, ``[batch, num_classes]``, float32, in proportion to the areas. As in torchvision,
    one rectangle is drawn for the whole batch, and the first row's partner is the last row.

    Attributes:
        num_classes: Number of classes; must be above the greatest label.
        alpha: The share of the area outside the rectangle has the distribution Beta(alpha, alpha), before the rectangle
            is cut at the edges. Default 1.0, the uniform distribution.
        labels: Name of the column of labels.
    """

    def decide(self, numbers: Sequence[float], height: int, width: int) -> Mixed:
        reach = 0.5 * math.sqrt(1.0 - beta(self.alpha, numbers[0], numbers[1]))
        x, y = int(numbers[2] * width), int(numbers[3] * height)
        wide, tall = int(reach * width), int(reach * height)
        left, top = max(x - wide, 0), max(y - tall, 0)
        right, bottom = min(x + wide, width), min(y + tall, height)
        own = 1.0 - (right - left) * (bottom - top) / (width * height)
        return Mixed(own, 1.0, top, left, bottom, right)


class CutMixOnBatch(MixingOnBatch[CutMix]):
    pass
