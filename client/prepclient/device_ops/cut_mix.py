"""`CutMix`: a rectangle of another sample's image."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prepclient.device_ops._mixing import Mixed, Mixing, MixingOnBatch, beta


class CutMix(Mixing):
    """Put a rectangle of the image before it into each image of a batch. Only for `device_ops`.

    Labels become weights of classes, (batch, num_classes) float32, by the rectangle's share of the area. As in
    torchvision, one rectangle is drawn for the whole batch, and the first row's partner is the last.

    Attributes:
        num_classes: Number of classes; above the greatest label.
        alpha: The area outside the rectangle is of the distribution Beta(alpha, alpha), before it is cut at the edges.
        labels: The column of labels.
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
