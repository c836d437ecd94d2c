"""Photo-like images, encoded in every way that JPEG knows, for tests of packing and of indexed scans."""

from __future__ import annotations

import functools
import io

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from prepserver.pack.transcode import Transcoder, transcode
from prepserver.protocol.packed import INDEXED, IndexedScan, read_record

SUBSAMPLINGS = ("444", "422", "420", "440", "411", "Gray")
PILLOW_SUBSAMPLINGS = ("444", "422", "420", "Gray")


def pixels(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """RGB, (height, width, 3): waves of strong colours, and grain, so that each pixel shows where it came from."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / 25.0
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0.3, 3.0, (3, 3))]
    image = 128 + 90 * np.stack(waves, axis=2) + rng.normal(0, 12, (height, width, 3))
    clipped: npt.NDArray[np.uint8] = image.clip(0, 255).astype(np.uint8)
    return clipped


def jpeg(height: int, width: int, subsampling: str = "420", seed: int = 0, quality: int = 90) -> bytes:
    """A baseline JPEG without restart markers."""
    image = pixels(height, width, seed)
    if subsampling == "Gray":
        return bytes(simplejpeg.encode_jpeg(image[:, :, :1].copy(), quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(image, quality, "RGB", subsampling))


def saved(image: npt.NDArray[np.uint8] | Image.Image, kind: str, **options: object) -> bytes:
    """Any format by Pillow."""
    file = io.BytesIO()
    made = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    made.save(file, kind, **options)
    return file.getvalue()


@functools.lru_cache(maxsize=64)
def indexed(data: bytes, segment_mcus: int = 4, lossless: bool = False) -> IndexedScan:
    """An image as a packed dataset would give it; fails if it cannot be indexed."""
    head, lengths, image = read_record(transcode(7, data, Transcoder(lossless, segment_mcus)).record)
    assert head.kind == INDEXED
    return IndexedScan(head, lengths, image)
