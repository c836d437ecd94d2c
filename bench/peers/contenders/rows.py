"""One row as those make it who know: simplejpeg and cv2, at their fastest settings. Not antialiased.

What every contender in Python but prepserver and the two other DataLoaders has in common, so that what
differs between them is the loader.
"""

from __future__ import annotations

import random

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from contenders import SIZE
from contenders.crops import draw_crop

cv2.setNumThreads(0)  # a worker is one core's worth


def row_of(data: bytes) -> npt.NDArray[np.uint8]:
    """Decodes the whole image, crops, resizes, flips; uint8 [224, 224, 3]."""
    image = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
    top, left, height, width = draw_crop(image.shape[0], image.shape[1])
    row = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(row, 1) if random.random() < 0.5 else row
