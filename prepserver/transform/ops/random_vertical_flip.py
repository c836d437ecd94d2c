"""How `RandomVerticalFlip` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_vertical_flip import RandomVerticalFlip
from prepserver.transform.geometry import FlipStage
from prepserver.transform.moves import ROWS


class RandomVerticalFlipStage(FlipStage):
    op = RandomVerticalFlip
    axis = ROWS
