"""Batches for detection models: a list of images and a list of targets, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepclient.errors import InvalidSpec
from prepserver.pipeline.kinds import BoxCount, Boxes, Image
from prepserver.pipeline.pipeline import Pipeline


class Targets:
    """Separates a batch into what torchvision's detection models take.

    Args:
        pipeline: The pipeline.
        names: Columns that the user wants, in order; None for all.

    Raises:
        InvalidSpec: The pipeline makes no boxes, or the images or boxes of several views.
    """

    def __init__(self, pipeline: Pipeline, names: Sequence[str] | None) -> None:
        counts = [field.name for field in pipeline.fields if isinstance(field.kind, BoxCount)]
        images = [field.name for field in pipeline.fields if isinstance(field.kind, Image)]
        if len(counts) != 1 or len(images) != 1 or (names is not None and images[0] not in names):
            said = "collate = 'list': needs one image of each sample, one view of it, and boxes with PadBoxes(n)"
            raise InvalidSpec(said, "collate")
        self._count, self._image, self._names = counts[0], images[0], names
        self._per_box = {
            field.name for field in pipeline.fields if field.kind.is_per_box or isinstance(field.kind, Boxes)
        }

    def __call__(self, fields: dict[str, Any]) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        """Return the images of a batch, and a dict of the other columns for each; all are views."""
        names = [name for name in self._names or fields if name not in (self._count, self._image)]
        counts = fields[self._count].tolist()  # waits for the device
        targets = [
            {name: fields[name][row][:count] if name in self._per_box else fields[name][row] for name in names}
            for row, count in enumerate(counts)
        ]
        return list(fields[self._image]), targets
