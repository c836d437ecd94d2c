"""How `SyntheticImages` are read: a small bank of pictures, from which any number of samples is drawn.

Drawing a picture costs several decodes of it, so a bank of at most 32 is drawn once, when the index is built, and read
by every worker. A sample is a picture of the bank, chosen by (seed, index), with a JPEG comment that names the index.
No two samples have the same bytes, and decoding one costs as much as a photo. But pictures repeat: they serve to try
and to measure, not to learn from.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from typing import Any

import simplejpeg

from prepserver.pipeline.sources.synthetic_images import SyntheticImages
from prepserver.source.container import Container
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.samples import Record, Source
from prepserver.source.scenes import scene

# Raise it when `scene` or the encoding changes, so that the banks of older releases are not used.
_BANK_VERSION = 1

_BANK_PICTURES = 32
# Larger pictures make smaller banks, so that a bank stays below 10 MB and a second.
_BANK_PIXELS = _BANK_PICTURES * 375 * 500
_BANK_LEAST = 4
# Like the photos of ImageNet: mostly quality 95 and full chroma, 0.58 bytes per pixel, a quarter of them 4:2:0.
_QUALITY = 95

_MASK = (1 << 64) - 1


class SyntheticImagesReader(ScanningReader):
    spec: SyntheticImages

    @property
    def key(self) -> str:
        # A bank serves any number of samples and classes.
        what = f"SyntheticImages bank {_BANK_VERSION} {self.spec.seed} {self.spec.height} {self.spec.width}"
        return hashlib.sha256(what.encode()).hexdigest()[:32]

    def scan(self, progress: Progress) -> Scan:
        bank = _draw_bank(self.spec)
        return Scan({"content_digest": hashlib.sha256(bank["jpegs"]).hexdigest()}, bank, Places())

    def read_by(self, container: Container) -> Source:
        return SyntheticSource(container, self.spec)

    def counts(self, meta: Mapping[str, Any]) -> tuple[int, int]:
        return self.spec.n, self.spec.num_classes


def _draw_bank(spec: SyntheticImages) -> dict[str, memoryview]:
    """Return ``jpegs``, the pictures of a seed and a size one after the other, and their ``ends``, uint64 from 0."""
    count = min(max(_BANK_PIXELS // (spec.height * spec.width), _BANK_LEAST), _BANK_PICTURES)
    jpegs = bytearray()
    ends = array("Q", [0])
    for number in range(count):
        jpegs += simplejpeg.encode_jpeg(
            scene(spec.seed, spec.height, spec.width, number),
            quality=_QUALITY,
            colorspace="RGB",
            colorsubsampling="420" if number % 4 == 3 else "444",
        )
        ends.append(len(jpegs))
    return {"jpegs": memoryview(jpegs), "ends": memoryview(ends)}


class SyntheticSource(Source):
    """A `Source` over a bank of the spec's seed and size."""

    def __init__(self, container: Container, spec: SyntheticImages) -> None:
        self._spec = spec
        self._container = container  # pictures are not kept: each stream of a worker has its own source
        self._ends = memoryview(container.section("ends")).cast("Q")

    def __len__(self) -> int:
        return self._spec.n

    def read(self, index: int) -> Record:
        dice = self._dice(index)
        picture = dice % (len(self._ends) - 1)
        jpeg = self._container.piece("jpegs", self._ends[picture], self._ends[picture + 1])
        # JFIF wants its APP0 segment right after the start marker; the comment goes after that.
        head = 4 + int.from_bytes(jpeg[4:6]) if jpeg[2:4] == b"\xff\xe0" else 2
        comment = f"prepserver synthetic seed={self._spec.seed} index={index}".encode()
        marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2)
        data = b"".join((jpeg[:head], marker, comment, jpeg[head:]))
        return {"image": data, "label": self._class(dice)}

    def label(self, index: int) -> int:
        return self._class(self._dice(index))

    def name(self, index: int) -> str:
        return f"synthetic-{self._spec.seed}-{index}.jpg"

    def _class(self, dice: int) -> int:
        return (dice >> 32) % self._spec.num_classes

    def _dice(self, index: int) -> int:
        """Return 64 random bits of (seed, index): two rounds of the splitmix64 finaliser."""
        if not 0 <= index < self._spec.n:
            raise IndexError(f"index {index} of a source of {self._spec.n} samples")
        return _mix(_mix(self._spec.seed) + index)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
