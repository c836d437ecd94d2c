"""How `RandomIoUCrop` is done: as in torchvision, from our own random numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from prepserver.pipeline.ops.random_iou_crop import RandomIoUCrop
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import cut
from prepserver.transform.objects import Objects, floats
from prepserver.transform.stage import Array, Drawn, Stage

_ROUNDS = 50


class RandomIoUCropStage(Stage):
    op = RandomIoUCrop
    sees_boxes = True
    _op: RandomIoUCrop

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        raise NotImplementedError  # it is asked with boxes

    def draw_by(self, objects: Objects, draws: Draws) -> Drawn:
        height, width = objects.size
        found = self._part(objects, draws) if len(objects.boxes) else None
        if found is None:
            return Drawn(None, height, width)
        part, within = found
        drawn = cut(part, (height, width), "constant", (0.0,))
        return drawn._replace(moves=(*drawn.moves, partial(_marked, within)))

    def _part(self, objects: Objects, draws: Draws) -> tuple[tuple[int, int, int, int], Array] | None:
        """Return (top, left, height, width), and for each box whether its middle lies inside; None for the whole."""
        op, boxes, areas = self._op, objects.boxes, objects.areas
        middles = np.float32(0.5) * (boxes[:, :2] + boxes[:, 2:])
        for _ in range(_ROUNDS):
            least = op.sampler_options[draws.below(len(op.sampler_options))]
            if least >= 1.0:
                return None
            for _ in range(op.trials):
                top, left, height, width = self._tried(*objects.size, draws)
                if not height or not width or not op.min_aspect_ratio <= width / height <= op.max_aspect_ratio:
                    continue
                near, far = floats(left, top), floats(left + width, top + height)
                within: Array = np.all((near < middles) & (middles < far), axis=1)
                if within.any() and _overlaps(boxes[within], areas[within], near, far).max() >= least:
                    return (top, left, height, width), within
        return None

    def _tried(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        rows, columns = (int(side * draws.uniform(self._op.min_scale, self._op.max_scale)) for side in (height, width))
        return int((height - rows) * draws.uniform()), int((width - columns) * draws.uniform()), rows, columns


def _overlaps(boxes: Array, areas: Array, near: Array, far: Array) -> Array:
    """Return the intersection over union of each box with one box."""
    sides = np.clip(np.minimum(boxes[:, 2:], far) - np.maximum(boxes[:, :2], near), 0, None)
    shared = sides[:, 0] * sides[:, 1]
    overlaps: Array = shared / (areas + np.prod(far - near) - shared)
    return overlaps


def _marked(within: Array, objects: Objects) -> Objects:
    """Return objects whose boxes are 0 unless `within`."""
    return replace(objects, boxes=np.where(within[:, None], objects.boxes, np.float32(0)))
