"""How `RandomIoUCrop` is done: as in torchvision, from our own random numbers."""

from functools import partial

import numpy as np

from prepserver.pipeline.kinds import Size
from prepserver.pipeline.ops.random_iou_crop import RandomIoUCrop
from prepserver.transform.geometry import cut
from prepserver.transform.objects import Objects
from prepserver.transform.stage import Array, Drawn, Draws, Stage

_ROUNDS = 50


class RandomIoUCropStage(Stage[RandomIoUCrop]):
    sees_boxes = True

    def draw_by(self, objects: Objects, draws: Draws) -> Drawn:
        height, width = objects.size
        found = self._part(objects, draws) if len(objects.boxes) else None
        if found is None:
            return Drawn(None, height, width)
        part, within = found
        drawn = cut(part, (height, width))
        return drawn._replace(moves=(*drawn.moves, partial(_marked, within)))

    def _part(self, objects: Objects, draws: Draws) -> tuple[tuple[int, int, int, int], Array] | None:
        """Return (top, left, height, width), and for each box whether its middle lies inside; None for the whole."""
        op, boxes, areas = self._op, objects.boxes, objects.areas
        middles = np.float32(0.5) * (boxes[:, :2] + boxes[:, 2:])
        for _ in range(_ROUNDS):
            least = op.sampler_options[draws.below(len(op.sampler_options))]
            if least >= 1.0:
                return None
            corners, sizes = self._tried(objects.size, draws)  # (trials, 2): x and y
            near, far = (each.astype(np.float32)[:, None] for each in (corners, corners + sizes))
            within: Array = np.all((near < middles) & (middles < far), axis=2)
            sides = np.clip(np.minimum(boxes[:, 2:], far) - np.maximum(boxes[:, :2], near), 0, None)
            shared = sides[..., 0] * sides[..., 1]
            overlaps = shared / (areas + (far - near).prod(2) - shared)
            good = np.where(within, overlaps, np.float32(-1)).max(1) >= least
            if good.any():
                first = int(good.argmax())
                (left, top), (width, height) = corners[first].tolist(), sizes[first].tolist()
                return (top, left, height, width), within[first]
        return None

    def _tried(self, size: Size, draws: Draws) -> tuple[Array, Array]:
        """Return corners and sizes of parts in pixels, those of other aspect ratios left out; all trials at once."""
        op, whole = self._op, np.array([size[1], size[0]])
        drawn = np.array([draws.uniform() for _ in range(4 * op.trials)]).reshape(2, op.trials, 2)
        sizes = (whole * (op.min_scale + (op.max_scale - op.min_scale) * drawn[0])).astype(np.int64)
        corners = ((whole - sizes) * drawn[1]).astype(np.int64)
        width, height = sizes[:, 0], sizes[:, 1]
        fits = (op.min_aspect_ratio * height <= width) & (width <= op.max_aspect_ratio * height)
        fits &= (width > 0) & (height > 0)
        return corners[fits], sizes[fits]


def _marked(within: Array, objects: Objects) -> Objects:
    """Return objects whose boxes are 0 unless `within`."""
    objects.boxes[~within] = 0
    return objects
