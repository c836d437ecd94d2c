"""No loader at all: simplejpeg's whole-image decode and torch's antialiased resize, in a loop in this process.

The physical reference. Files are in this process's memory and all buffers are used again; there is no order, no flip,
no batch and no delivery. prepserver can be faster: it decodes only the rows that a crop needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch

from bench.harness.contender import SIZE
from bench.peers.contenders.crops import draw_crop

_files: list[bytes] = []


def prepare(config: dict[str, Any]) -> None:
    paths = dict.fromkeys(line.split("\t")[0] for line in Path(config["list"]).read_text().splitlines())
    _files.extend(Path(path).read_bytes() for path in paths)


class _Kernels:
    def __init__(self, batch: int) -> None:
        self._out = torch.empty(batch, SIZE, SIZE, 3, dtype=torch.uint8)
        self._labels = torch.zeros(batch, dtype=torch.int64)
        self._pixels = np.empty(0, np.uint8)

    def __iter__(self) -> Iterator[Any]:
        place = 0
        for data in _files:
            self._one(data, self._out[place : place + 1])
            place += 1
            if place == len(self._out):
                yield self._out, self._labels
                place = 0

    def _one(self, data: bytes, out: torch.Tensor) -> None:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        nbytes = height * width * 3
        if self._pixels.size < nbytes:
            self._pixels = np.empty(nbytes, np.uint8)
        image = torch.from_numpy(simplejpeg.decode_jpeg(data, buffer=self._pixels[:nbytes]))
        top, left, h, w = draw_crop(height, width)
        crop = image[top : top + h, left : left + w].permute(2, 0, 1)[None]
        torch.ops.aten._upsample_bilinear2d_aa.out(crop, [SIZE, SIZE], False, None, None, out=out.permute(0, 3, 1, 2))


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    torch.set_num_threads(1)  # as in each worker
    return _Kernels(config["batch"])
