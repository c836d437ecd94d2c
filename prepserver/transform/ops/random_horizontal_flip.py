"""How `RandomHorizontalFlip` is done."""

from prepserver.pipeline.ops.random_horizontal_flip import RandomHorizontalFlip
from prepserver.transform.geometry import FlipStage
from prepserver.transform.moves import COLUMNS


class RandomHorizontalFlipStage(FlipStage[RandomHorizontalFlip]):
    axis = COLUMNS
