"""prepserver: each job is a client of one daemon, which has all the workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contenders import SIZE


def prepare(config: dict[str, Any]) -> None:
    import prepclient

    del prepclient


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    from prepclient import FileList, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    return PrepClient(
        FileList(config["list"]), [RandomResizedCrop(SIZE), RandomHorizontalFlip()], batch_size=config["batch"],
        shuffle=True, seed=config["seed"], runtime_dir=config["runtime_dir"],
    )  # fmt: skip
