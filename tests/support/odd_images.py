"""Small images of every kind that a dataset in the wild holds, and some that are no images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from prepserver.pipeline.sources import FileList, ImageFolder
from tests.support.tiny_images import jpeg

ORIENTATION = 0x0112  # the EXIF tag


def picture(seed: int, height: int = 40, width: int = 56) -> Image.Image:
    """Smooth colours with an edge or two, different for each seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _turned(seed: int, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(picture(seed), "JPEG", exif=exif)


def odd_files() -> dict[str, bytes]:
    """Name to bytes: all of them can be decoded."""
    deep = Image.fromarray(np.arange(40 * 56, dtype=np.uint16).reshape(40, 56) * 29)
    return {
        "cmyk.jpg": encoded(picture(1).convert("CMYK"), "JPEG"),
        "grey.jpg": encoded(picture(2).convert("L"), "JPEG"),
        "progressive.jpeg": encoded(picture(3), "JPEG", progressive=True),
        "subsampled.jpg": encoded(picture(4, 41, 57), "JPEG", subsampling=2),
        "colour444.JPG": encoded(picture(5), "JPEG", subsampling=0),
        "png_named.jpg": encoded(picture(6), "PNG"),
        "plain.png": encoded(picture(7), "PNG"),
        "alpha.png": encoded(picture(8).convert("RGBA"), "PNG"),
        "palette.png": encoded(picture(9).convert("P"), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "one_bit.png": encoded(picture(10).convert("1"), "PNG"),
        "lossless.webp": encoded(picture(11), "WEBP", lossless=True),
        "plain.bmp": encoded(picture(12), "BMP"),
        "plain.tif": encoded(picture(13), "TIFF"),
        "one_pixel.png": encoded(picture(15, 1, 1), "PNG"),
        "thin.jpg": encoded(picture(16, 1, 300), "JPEG"),
        **{f"turned{n}.jpg": _turned(20 + n, n) for n in range(2, 9)},
        "trailing.jpg": jpeg(30) + b"\0" * 100,
    }


def odd_tree(root: Path, plain: int = 24) -> ImageFolder:
    """Two classes: the odd files, and `plain` ordinary JPEGs of different sizes."""
    for folder in ("odd", "plain"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, data in odd_files().items():
        (root / "odd" / name).write_bytes(data)
    for n in range(plain):
        (root / "plain" / f"{n:03d}.jpg").write_bytes(jpeg(100 + n, 40 + 8 * (n % 5), 40 + 16 * (n % 3)))
    return ImageFolder(str(root))


def listed(path: Path, names: list[tuple[str, int]]) -> FileList:
    """A list file of (path, label)."""
    path.write_text("".join(f"{name} {label}\n" for name, label in names))
    return FileList(str(path))


def header_bomb() -> bytes:
    """A PNG of a few hundred bytes that claims 60000 x 60000 pixels: 10 GiB when decoded."""
    small = encoded(Image.new("RGB", (4, 4)), "PNG")
    head = bytearray(small[:33])
    head[16:24] = (60000).to_bytes(4, "big") * 2
    import zlib

    head[29:33] = zlib.crc32(bytes(head[12:29])).to_bytes(4, "big")
    return bytes(head) + small[33:]


def scan_bomb(scans: int = 4000) -> bytes:
    """A progressive JPEG within every limit of its header that takes minutes to decode.

    Each repetition of its last scan is 96 bytes of file, and a walk over a million coefficients for the decoder.
    """
    whole = encoded(Image.new("L", (7992, 7992), 90), "JPEG", progressive=True, quality=50)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * scans + whole[-2:]
