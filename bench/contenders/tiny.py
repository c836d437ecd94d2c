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
    """A loader that gives no more than so many rows per second; what was late is not made up for."""

    def __init__(self, loader: Any, rows_per_s: float) -> None:
        self._loader = loader
        self._rows_per_s = rows_per_s
        self._next_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        for images, labels in self._loader:
            yield images, labels
            now_s = time.monotonic()
            self._next_s = max(now_s, self._next_s + len(images) / self._rows_per_s)
            time.sleep(self._next_s - now_s)

    def close(self) -> None:
        self._loader.close()
