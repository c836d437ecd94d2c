"""How `RandomVerticalFlip` is done."""

from prepserver.pipeline.ops.random_vertical_flip import RandomVerticalFlip
from prepserver.transform.geometry import FlipStage
from prepserver.transform.moves import ROWS


class RandomVerticalFlipStage(FlipStage[RandomVerticalFlip]):
    axis = ROWS
