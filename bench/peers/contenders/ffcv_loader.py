"""FFCV: reads its own format, which `build` encodes anew; numba compiles the loop at the start.

Three ways to write it: every photo as a JPEG of quality 90 ("jpg90"), the mix of FFCV's ImageNet recipe
(longest side 500, half of them JPEG 90, the others raw: "mix"), and raw pixels of full size ("raw").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.reader import Reader
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor
from ffcv.writer import DatasetWriter
from PIL import Image

from bench.harness.contender import RATIO, SCALE, SIZE
from bench.peers.contenders.lists import listed

_FIELDS: dict[str, dict[str, Any]] = {
    "jpg90": {"write_mode": "jpg", "jpeg_quality": 90},
    "mix": {"write_mode": "proportion", "compress_probability": 0.5, "max_resolution": 500, "jpeg_quality": 90},
    "raw": {"write_mode": "raw"},
}
_PAGE_BYTES = 64 << 20  # by default 8 MB: the writer dies on a larger raw picture


class _Photos:
    def __init__(self, files: list[tuple[str, int]]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._files[index]
        with Image.open(path) as file:
            return file.convert("RGB"), label


def build(config: dict[str, Any]) -> int:
    """Writes each photo once; the loader repeats them by its ``indices``.

    Returns:
        Bytes of all samples: the file is larger, because its pages are.
    """
    files = list(dict.fromkeys(listed(config["list"])))
    fields = {"image": RGBImageField(**_FIELDS[config["written"]]), "label": IntField()}
    writer = DatasetWriter(config["out"], fields, page_size=_PAGE_BYTES, num_workers=config["workers"])
    writer.from_indexed_dataset(_Photos(files))
    return int(Reader(config["out"]).alloc_table["size"].sum())


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    samples = listed(config["list"])
    photos = len(dict.fromkeys(samples))
    decoder = RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=SCALE, ratio=RATIO)
    pipelines = {
        "image": [decoder, RandomHorizontalFlip(), ToTensor()],
        "label": [IntDecoder(), ToTensor(), Squeeze()],
    }
    loader: Iterable[Any] = Loader(
        config["data"], batch_size=config["batch"], num_workers=config["workers"], order=OrderOption.RANDOM,
        os_cache=True, drop_last=True, seed=config["seed"], indices=np.arange(len(samples)) % photos,
        pipelines=pipelines,
    )  # fmt: skip
    return loader
