"""prepserver on ``samples`` tiny synthetic images, at ``rows_per_s`` if not 0: a stream whose decoding costs little."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from prepclient import Joining, PrepClient, RandomResizedCrop, SyntheticImages


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    size = config["size"]
    client = PrepClient(
        SyntheticImages(config["samples"], size), [RandomResizedCrop(size)], batch_size=config["batch"], shuffle=True,
        seed=config["seed"], runtime_dir=config["runtime_dir"], job=config["job"],
        joining=Joining(wait_s=config["join_wait_s"]),
    )  # fmt: skip
    return Paced(client, config["rows_per_s"]) if config["rows_per_s"] else client


class Paced:
    """A training loop that computes equally long on every batch, even on one that came late.

    If only the rate were limited, a job that was late once would ask for every later batch at once: it would wait for
    nearly all of its time, and the daemon would rightly find that the other job holds it back.
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
