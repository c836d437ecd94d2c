"""One row by simplejpeg and cv2 at their fastest settings, not antialiased.

Most contenders in Python make their rows by this function, so that only the loaders differ.
"""

from __future__ import annotations

import random

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from bench.harness.contender import SIZE
from bench.peers.contenders.crops import draw_crop

cv2.setNumThreads(0)  # a worker stands for one core


def row_of(data: bytes) -> npt.NDArray[np.uint8]:
    """Decodes the whole image, crops, resizes, flips; uint8 [224, 224, 3]."""
    image = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
    top, left, height, width = draw_crop(image.shape[0], image.shape[1])
    row: npt.NDArray[np.uint8] = cv2.resize(
        image[top : top + height, left : left + width], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR
    )
    return np.asarray(cv2.flip(row, 1)) if random.random() < 0.5 else row
