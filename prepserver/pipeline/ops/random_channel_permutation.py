"""`RandomChannelPermutation`: channels in random order."""

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class RandomChannelPermutation(Op):
    """Put the channels of an image, 1 or 3, in a random order."""

    def image_after(self, image: Image) -> Image:
        if image.channels not in (1, 3):
            reason = f"works on 1 or 3 channels, and the image has {image.channels}"
            raise SpecError("op", type(self).__name__, reason)
        return image
