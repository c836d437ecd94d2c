"""Small JPEG trees and everything that a worker needs to fill rows from them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from prepserver.memory.ring import Ring
from prepserver.memory.segment import create_segment
from prepserver.order import Shuffle, make_order
from prepserver.pipeline.ops import Op, RandomHorizontalFlip, RandomResizedCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import ImageFolder
from prepserver.protocol.layout import RingLayout, ring_fields
from prepserver.source import Listing, build_index, open_source
from prepserver.worker.channel import ChannelClosed, receive
from prepserver.worker.streams import Lane, Stream


def jpeg(seed: int, height: int = 40, width: int = 56) -> bytes:
    """A JPEG that differs from that of any other seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    pixels = np.ascontiguousarray(coarse.repeat(8, 0).repeat(8, 1))
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90))


def photo_tree(root: Path, count: int, broken: frozenset[int] = frozenset()) -> ImageFolder:
    """`count` images in two classes, in the order of their indices; those in `broken` are no images."""
    for index in range(count):
        folder = root / ("cats" if index < count // 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        data = b"no image at all" if index in broken else jpeg(index)
        (folder / f"{index:04d}.jpg").write_bytes(data)
    return ImageFolder(str(root))


def tiny_pipeline(size: int = 16, *more: Op, views: int = 1) -> Pipeline:
    """Random crops of `size` pixels, flipped at random."""
    return Pipeline.from_ops([RandomResizedCrop(size), RandomHorizontalFlip(), *more], views)


def open_stream(spec: ImageFolder, cache: Path, shuffle: Shuffle = "none", seed: int = 3) -> Stream:
    """The stream of a dataset, indexed in `cache`."""
    source = open_source(spec, index_of(spec, cache).path)
    return Stream(source, make_order(shuffle, len(source), seed), seed)


def index_of(spec: ImageFolder, cache: Path) -> Listing:
    """The index of a dataset."""
    return build_index(spec, cache)


class OwnLane:
    """A pipeline and a ring of our own.

    Attributes:
        fd: The segment, open until `close`.
    """

    def __init__(self, pipeline: Pipeline, rows: int) -> None:
        self.pipeline = pipeline
        self.layout = RingLayout(rows, ring_fields(pipeline.fields))
        self.fd = create_segment("test-ring", self.layout.nbytes)
        self.ring = Ring(self.fd, self.layout)

    @property
    def lane(self) -> Lane:
        """For `fill`."""
        return Lane.of(self.pipeline, self.ring)

    def rows(self, start: int, stop: int) -> list[tuple[bytes, int, int]]:
        """(bytes of all views, label, index) of the rows of positions [start, stop)."""
        return [
            (
                b"".join(self.ring.row(field.name, p).tobytes() for field in self.layout.dense),
                int(self.ring.row("label", p)),
                int(self.ring.row("index", p)),
            )
            for p in range(start, stop)
        ]


def said_before_the_end(sock: socket.socket, allowed: Mapping[str, type]) -> list[Any]:
    """All messages of a peer that has closed its end."""
    said: list[Any] = []
    try:
        while True:
            said.append(receive(sock, allowed)[0])
    except ChannelClosed:
        return said


def nothing(*_: Any) -> None:
    """A mark that nobody reads."""
