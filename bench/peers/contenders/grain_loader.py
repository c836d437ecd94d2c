"""Grain: a MapDataset over the list, read by worker processes that hand batches over in shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grain
import numpy as np

from bench.peers.contenders.endless import Endless
from bench.peers.contenders.lists import listed
from bench.peers.contenders.rows import row_of


class _Row(grain.transforms.Map):
    def map(self, sample: tuple[str, int]) -> tuple[Any, Any]:
        path, label = sample
        return row_of(Path(path).read_bytes()), np.int64(label)


def prepare(config: dict[str, Any]) -> None:
    import absl.flags

    # Its workers are spawned, and read flags that only an absl application has parsed.
    absl.flags.FLAGS.mark_as_parsed()


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    samples = listed(config["list"])
    dataset = grain.MapDataset.source(samples).shuffle(seed=config["seed"]).repeat().map(_Row())
    batches = dataset.batch(config["batch"], drop_remainder=True).to_iter_dataset(
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    )
    batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=config["workers"], per_worker_buffer_size=2))
    return Endless(batches, len(samples) // config["batch"])
