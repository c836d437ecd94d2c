"""prepserver: each job is a client of one daemon, which has all the workers.

It reads a packed dataset if the configuration has ``data``, else the files of the list. ``size``, ``augments`` (with
RandAugment and RandomErasing), ``form`` (of the packed dataset), ``boxes`` (a file in COCO's format, whose photos are
read instead), ``lag``, ``join_wait_s``, ``lends`` (batches, rather than copy them) and ``device`` may be given too.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from bench.harness.contender import SIZE


def build(config: dict[str, Any]) -> None:
    subprocess.run(
        [sys.executable, "-m", "prepserver.cli", "pack", "--quiet", "--workers", str(config["workers"]),
         "--form", config.get("form", "indexed"), config["list"], config["out"]], check=True,
    )  # fmt: skip


def prepare(_config: dict[str, Any]) -> None:
    importlib.import_module("prepclient")


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    import prepclient
    from prepclient import FileList, Packed, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    if "boxes" in config:
        return _with_boxes(config)
    source = Packed(config["data"]) if "data" in config else FileList(config["list"])
    ops: list[Any] = [RandomResizedCrop(config.get("size", SIZE)), RandomHorizontalFlip()]
    if config.get("augments"):
        ops += [prepclient.RandAugment(), prepclient.RandomErasing(0.25)]
    wait_s, lag = config.get("join_wait_s", 10.0), config.get("lag", "auto")
    sharing: dict[str, Any] = {"join_wait_s": wait_s, "lag": lag}  # before 0.2, which `versus` may run
    if hasattr(prepclient, "Joining"):
        sharing = {"joining": prepclient.Joining(wait_s=wait_s, lag=lag)}
    return PrepClient(
        source, ops, batch_size=config["batch"], shuffle=True, seed=config["seed"],
        runtime_dir=config["runtime_dir"], **sharing, zero_copy=config.get("lends", False),
        device=config.get("device"),
    )  # fmt: skip


def _with_boxes(config: dict[str, Any]) -> Iterable[Any]:
    import prepclient

    ops = [
        prepclient.RandomIoUCrop(), prepclient.RandomHorizontalFlip(), prepclient.Resize((config["size"],) * 2),
        prepclient.SanitizeBoxes(), prepclient.PadBoxes(16),
    ]  # fmt: skip
    return prepclient.PrepClient(
        prepclient.Coco("/", config["boxes"]),
        ops,
        batch_size=config["batch"],
        shuffle=True,
        seed=config["seed"],
        runtime_dir=config["runtime_dir"],
    )
