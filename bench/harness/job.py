"""One job of a benchmark: a process that takes batches as fast as it gets them. Started by `jobs.py`.

Its stdin brings the configuration (a line of JSON), then ``go``, then ``stop``, then its end. Its stdout says
``ready`` when everything is imported, ``first`` with the first batch in hand, and when it was stopped a line of JSON:
when every batch was asked for and came (CLOCK_MONOTONIC, comparable across processes), and whether it began an
epoch. Its loader is there until stdin ends: some contenders hang a job when another one leaves. Whatever else is
printed goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import contenders

_PR_SET_PDEATHSIG = 1
_OUT = os.fdopen(os.dup(1), "w")  # some contenders print


def main() -> None:
    end_with_parent()
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    contender = contenders.load(config["contender"])
    contender.prepare(config)
    if torch := sys.modules.get("torch"):  # not everybody uses it
        torch.set_num_threads(1)
    say("ready")
    if sys.stdin.readline().strip() != "go":
        return
    loader = contender.open_loader(config)
    say(json.dumps(consume(loader, config)))
    sys.stdin.read()
    if hasattr(loader, "close"):
        loader.close()


def end_with_parent() -> None:
    """Has the kernel kill this process when the benchmark dies: a job that hangs notices nothing."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def consume(loader: Iterable[Any], config: dict[str, Any]) -> dict[str, Any]:
    asked: list[int] = []
    came: list[int] = []
    images: list[int] = []
    begins: list[int] = []  # places in the lists where an epoch began
    epoch: Iterator[Any] = iter(loader)
    # Asked between batches: a thread that waits on stdin would hold its lock when DataLoader forks.
    while not select.select([sys.stdin], [], [], 0)[0]:
        asked.append(time.monotonic_ns())
        try:
            batch = next(epoch)[0]
        except StopIteration:
            begins.append(len(came))
            epoch = iter(loader)
            batch = next(epoch)[0]
        came.append(time.monotonic_ns())
        images.append(len(batch))
        touch(batch)
        if len(came) == 1:
            check(batch, config["batch"], config.get("size", contenders.SIZE))
            say("first")
        if len(came) == config.get("holds_after"):
            time.sleep(3600)  # with rows in its hands, until it is killed
    return {"asked_ns": asked, "came_ns": came, "images": images, "epoch_begins": begins}


def touch(batch: Any) -> int:
    """Reads a few bytes of every image, so that a batch that is not there would be noticed."""
    return int(batch[:, 0, 0, 0].sum()) + int(batch[:, -1, -1, -1].sum())


def check(batch: Any, size: int, pixels: int) -> None:
    """That everybody does the same work."""
    shape, dtype = sorted(batch.shape), str(batch.dtype).removeprefix("torch.")
    if shape != sorted((size, pixels, pixels, 3)) or dtype != "uint8":
        raise SystemExit(f"a batch is {tuple(batch.shape)} of {dtype}")


def say(text: str) -> None:
    print(text, file=_OUT, flush=True)


if __name__ == "__main__":
    main()
