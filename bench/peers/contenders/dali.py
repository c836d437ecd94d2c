"""DALI on the CPU: decodes by nvimgcodec's CPU backend, all in one process with as many threads as workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

from bench.harness.contender import RATIO, SCALE, SIZE
from bench.peers.contenders.endless import Endless
from bench.peers.contenders.lists import listed

_TRIES = 10
_SHUFFLED = 1024  # samples in the reader's buffer: it holds encoded files, and fills it before the first batch


class _Batches:
    """Batches of a pipeline as numpy arrays over DALI's memory, valid until the next one."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        self._pipeline.build()
        for _ in itertools.count():
            images, labels = self._pipeline.run()
            yield np.asarray(images.as_tensor()), np.asarray(labels.as_tensor())


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    files, labels = zip(*listed(config["list"]), strict=True)

    @pipeline_def(batch_size=config["batch"], num_threads=config["workers"], device_id=None, seed=config["seed"],
                  prefetch_queue_depth=2, exec_dynamic=True)  # fmt: skip
    def rows() -> Any:
        data, label = fn.readers.file(
            files=list(files), labels=list(labels), random_shuffle=True, initial_fill=_SHUFFLED, name="files"
        )
        # Pictures are not turned by their EXIF tag, because no other loader does so.
        image = fn.decoders.image_random_crop(
            data, device="cpu", random_area=list(SCALE), random_aspect_ratio=list(RATIO), num_attempts=_TRIES,
            use_fast_idct=True, adjust_orientation=False,
        )  # fmt: skip
        image = fn.resize(image, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=config["antialias"])
        return fn.flip(image, horizontal=fn.random.coin_flip()), label

    return Endless(_Batches(rows()), len(files) // config["batch"])
