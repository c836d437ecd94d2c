"""prepserver on tiny synthetic images, at a pace if one is asked for: what a stream does, whatever decoding costs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any


def prepare(config: dict[str, Any]) -> None:
    import prepclient

    del prepclient


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    from prepclient import PrepClient, RandomResizedCrop, SyntheticImages

    size = config["size"]
    client = PrepClient(
        SyntheticImages(config["samples"], size), [RandomResizedCrop(size)], batch_size=config["batch"], shuffle=True,
        seed=config["seed"], runtime_dir=config["runtime_dir"], job=config["job"], join_wait_s=config["join_wait_s"],
    )  # fmt: skip
    return Paced(client, config["rows_per_s"]) if config["rows_per_s"] else client


class Paced:
    """A training loop that computes for so long on every batch: who gets one late computes no less for that.

    A mere limit of the rate would let a job that once came late ask for the next batch at once, ever after: it would
    wait for nearly all of its time, and the other one would rightly be said to hold it back.
    """

    def __init__(self, loader: Any, rows_per_s: float) -> None:
        self._loader = loader
        self._rows_per_s = rows_per_s

    def __iter__(self) -> Iterator[Any]:
        for images, labels in self._loader:
            yield images, labels
            time.sleep(len(images) / self._rows_per_s)

    def close(self) -> None:
        self._loader.close()
