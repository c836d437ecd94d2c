"""One job of a benchmark: a process that takes batches as fast as it gets them. Started by `jobs.py`.

Its stdin brings the configuration (a line of JSON), then ``go``, then ``stop``. Its stdout says ``ready`` when
everything is imported, ``first`` with the first batch in hand, and at last a line of JSON: when every batch
was asked for and came (CLOCK_MONOTONIC, comparable across processes), and whether it began an epoch.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

import contenders


def main() -> None:
    config = json.loads(sys.stdin.readline())
    contender = contenders.load(config["contender"])
    import torch

    torch.set_num_threads(1)
    contender.prepare(config)
    say("ready")
    if sys.stdin.readline().strip() != "go":
        return
    say(json.dumps(consume(contender, config)))


def consume(contender: contenders.Contender, config: dict[str, Any]) -> dict[str, Any]:
    asked: list[int] = []
    came: list[int] = []
    images: list[int] = []
    begins: list[int] = []  # places in the lists where an epoch began
    began_ns = time.monotonic_ns()
    loader = contender.open_loader(config)
    epoch: Iterator[Any] = iter(loader)
    open_ns = time.monotonic_ns()
    # Asked between batches: a thread that waits on stdin would hold its lock when DataLoader forks.
    while not select.select([sys.stdin], [], [], 0)[0]:
        asked.append(time.monotonic_ns())
        try:
            batch, _ = next(epoch)
        except StopIteration:
            begins.append(len(came))
            epoch = iter(loader)
            batch, _ = next(epoch)
        came.append(time.monotonic_ns())
        images.append(len(batch))
        touch(batch)
        if len(came) == 1:
            say("first")
    if hasattr(loader, "close"):
        loader.close()
    return {
        "began_ns": began_ns, "open_ns": open_ns, "asked_ns": asked, "came_ns": came, "images": images,
        "epoch_begins": begins,
    }  # fmt: skip


def touch(batch: Any) -> int:
    """Reads a few bytes of every image, so that a batch that is not there would be noticed."""
    return int(batch[:, 0, 0, 0].sum()) + int(batch[:, -1, -1, -1].sum())


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
