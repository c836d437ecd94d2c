"""SPDL: a pipeline of threads in one process, as many as there are workers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from contenders.lists import listed
from contenders.rows import row_of

_AHEAD = 3  # batches


def prepare(config: dict[str, Any]) -> None:
    del config


class _Loader:
    """A pipeline for each epoch: one that has ended cannot begin again."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._samples = listed(config["list"])
        self._batch, self._workers = config["batch"], config["workers"]
        self._draw = random.Random(config["seed"])

    def __iter__(self) -> Iterator[Any]:
        order = self._draw.sample(self._samples, len(self._samples))
        builder = PipelineBuilder().add_source(order).pipe(_row, concurrency=self._workers, output_order="completion")
        builder = builder.aggregate(self._batch, drop_last=True).pipe(_stack).add_sink(_AHEAD)
        pipeline = builder.build(num_threads=self._workers)
        with pipeline.auto_stop():
            yield from pipeline


def _row(sample: tuple[str, int]) -> tuple[Any, int]:
    path, label = sample
    return row_of(Path(path).read_bytes()), label


def _stack(rows: list[tuple[Any, int]]) -> tuple[Any, Any]:
    images, labels = zip(*rows, strict=True)
    return np.stack(images), np.array(labels)


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return _Loader(config)
