"""`MixUp`: blends images and labels of two samples."""

from __future__ import annotations

from collections.abc import Sequence

from prepclient.device_ops._mixing import Mixed, Mixing, MixingOnBatch, beta


class MixUp(Mixing):
    """Blends each image of a batch with the image before it, and their labels alike. Only for `device_ops`.

    Labels become weights of classes, ``[batch, num_classes]``, float32. As in torchvision, one weight is drawn for the
    whole batch, and the first row's partner is the last row. `RandomChoice([MixUp(...), CutMix(...)])` does one of the
    two to each batch.

    Attributes:
        num_classes: Number of classes; must be above the greatest label.
        alpha: The weight of a row itself has the distribution Beta(alpha, alpha). Default 1.0, the uniform
            distribution.
        labels: Name of the column of labels.
    """

    def decide(self, numbers: Sequence[float], height: int, width: int) -> Mixed:
        weight = beta(self.alpha, numbers[0], numbers[1])
        return Mixed(weight, weight)


class MixUpOnBatch(MixingOnBatch[MixUp]):
    pass
