"""How `RandomGrayscale` is done."""

from prepserver.pipeline.ops.random_grayscale import RandomGrayscale
from prepserver.transform import color
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomGrayscaleStage(ChanceStage[RandomGrayscale]):
    def change(self, image: Array) -> Array:
        return color.grey(image, image.shape[2])
