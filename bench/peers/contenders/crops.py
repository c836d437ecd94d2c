"""torchvision's RandomResizedCrop.get_params in plain Python; contenders without a crop of their own draw from it."""

from __future__ import annotations

import math
import random

from bench.harness.contender import RATIO, SCALE

_TRIES = 10


def draw_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random crop."""
    area = height * width
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(_TRIES):
        target = area * random.uniform(*SCALE)
        aspect = math.exp(random.uniform(low, high))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    ratio = width / height
    if ratio < RATIO[0]:
        w, h = width, round(width / RATIO[0])
    elif ratio > RATIO[1]:
        w, h = round(height * RATIO[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w
