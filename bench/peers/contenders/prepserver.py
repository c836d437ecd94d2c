"""prepserver: each job is a client of one daemon, which has all the workers.

With ``data`` in the configuration it reads a packed dataset, else the files of the list.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from contenders import SIZE


def build(config: dict[str, Any]) -> None:
    subprocess.run(
        [sys.executable, "-m", "prepserver.cli", "pack", "--quiet", "--workers", str(config["workers"]),
         config["list"], config["out"]], check=True,
    )  # fmt: skip


def prepare(config: dict[str, Any]) -> None:
    import prepclient

    del prepclient


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    from prepclient import FileList, Packed, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    source = Packed(config["data"]) if "data" in config else FileList(config["list"])
    ops = [RandomResizedCrop(config.get("size", SIZE)), RandomHorizontalFlip()]
    return PrepClient(
        source, ops, batch_size=config["batch"], shuffle=True, seed=config["seed"],
        runtime_dir=config["runtime_dir"], lag=config.get("lag", "auto"), join_wait_s=config.get("join_wait_s", 10.0),
        zero_copy=config.get("lends", False),
    )  # fmt: skip
