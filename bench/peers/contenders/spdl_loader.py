"""SPDL: a pipeline of threads in one process, as many as there are workers; each makes a whole batch.

A thread for each sample, with the batch stacked in the end, was a third slower: threads meet in the interpreter's
lock after every row. Its worker processes were slower still. The source repeats by itself, so the pipeline never ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from bench.harness.contender import SIZE
from bench.peers.contenders.endless import Endless
from bench.peers.contenders.lists import listed
from bench.peers.contenders.rows import row_of

_AHEAD = 3  # batches


class _Batches:
    def __init__(self, config: dict[str, Any]) -> None:
        self._samples = listed(config["list"])
        self._batch, self._workers = config["batch"], config["workers"]
        self._draw = random.Random(config["seed"])

    def __iter__(self) -> Iterator[Any]:
        builder = PipelineBuilder().add_source(self._shuffled()).aggregate(self._batch)
        builder = builder.pipe(_rows, concurrency=self._workers, output_order="completion").add_sink(_AHEAD)
        pipeline = builder.build(num_threads=self._workers)
        with pipeline.auto_stop():
            yield from pipeline

    def _shuffled(self) -> Iterator[tuple[str, int]]:
        while True:
            yield from self._draw.sample(self._samples, len(self._samples))


def _rows(samples: list[tuple[str, int]]) -> tuple[Any, Any]:
    images = np.empty((len(samples), SIZE, SIZE, 3), np.uint8)
    for place, (path, _) in enumerate(samples):
        images[place] = row_of(Path(path).read_bytes())
    return images, np.array([label for _, label in samples])


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return Endless(_Batches(config), len(listed(config["list"])) // config["batch"])
