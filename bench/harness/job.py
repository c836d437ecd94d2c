"""A process of a contender, started by `bench.harness.jobs` with the contender's Python: a job, a service, a writer.

Its stdin brings the configuration, a line of JSON; see `bench.harness.contender`. What it does is its argument:

- ``job``: takes batches as fast as it gets them. It says ``ready`` when everything is imported, waits for ``go``, says
  ``first`` with the first batch in hand, and when stdin says ``stop`` it prints a line of JSON: when it asked for each
  batch and when the batch came (CLOCK_MONOTONIC, the same clock for all processes), and which began an epoch. The
  loader lives until stdin says ``close`` or ends, because some contenders hang a job when another one leaves. Then it
  says ``closed``, and begins anew with the next configuration. With ``model`` in the configuration it trains that model
  on ``device`` with each batch, and says which part of the time it waited for rows.
- ``service``: serves jobs. It says ``ready`` when it listens, and ends with its stdin.
- ``writer``: writes the data in the contender's form, and says how many bytes all samples take, or ``null``.

Whatever else is printed goes to stderr.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from bench.harness import contender

_PR_SET_PDEATHSIG = 1


def main() -> None:
    # The kernel kills this process when the benchmark dies: a job that hangs notices nothing.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some contenders print
    config = json.loads(sys.stdin.readline())
    module = contender.load(config["contender"])
    roles: dict[str, Callable[[Any, dict[str, Any], TextIO], None]] = {"job": job, "service": service, "writer": writer}
    roles[sys.argv[1]](module, config, out)


def job(module: Any, config: dict[str, Any], out: TextIO) -> None:
    use: Callable[[Any], Any] | None = None
    model: str | None = None
    while True:
        if prepare := getattr(module, "prepare", None):
            prepare(config)
        if use is None or config.get("model") != model:
            use, model = None, config.get("model")  # the model before it frees its memory
            use = contender.training(config) if model else touch
        print("ready", file=out, flush=True)
        if sys.stdin.readline().strip() != "go":
            return
        loader = module.open_loader(config)
        print(json.dumps(consume(loader, config, out, use)), file=out, flush=True)
        sys.stdin.readline()  # "stop", as `consume` saw
        sys.stdin.readline()  # "close", or the end
        if hasattr(loader, "close"):
            loader.close()
        del loader  # a DataLoader's workers end
        gc.collect()
        print("closed", file=out, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        config = json.loads(line)
        module = contender.load(config["contender"])


def service(module: Any, config: dict[str, Any], out: TextIO) -> None:
    keep = module.serve(config)
    print("ready", file=out, flush=True)
    sys.stdin.readline()
    del keep
    os._exit(0)  # a service with threads of its own may take its time, and nothing of it has to be kept


def writer(module: Any, config: dict[str, Any], out: TextIO) -> None:
    print(json.dumps(module.build(config)), file=out, flush=True)


def consume(loader: Any, config: dict[str, Any], out: TextIO, use: Callable[[Any], Any]) -> dict[str, Any]:
    """Takes batches and uses them until stdin says something; returns when they were asked for and came."""
    asked: list[int] = []
    came: list[int] = []
    images: list[int] = []
    begins: list[int] = []  # places in the lists where an epoch began
    spent: list[float] | None = None
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
        use(batch)
        if len(came) == 1:
            check(batch, config["batch"], config.get("size", contender.SIZE))
            spent = spent_s(loader) if "model" in config else None
            print("first", file=out, flush=True)
        if len(came) == config.get("holds_after"):
            time.sleep(3600)  # with rows in its hands, until it is killed
    found: dict[str, Any] = {"asked_ns": asked, "came_ns": came, "images": images, "epoch_begins": begins}
    if spent is not None:
        waited_s, *others_s = (now - then for now, then in zip(spent_s(loader) or (), spent, strict=True))
        found["waited_fraction"] = waited_s / (waited_s + sum(others_s))
    return found


def spent_s(loader: Any) -> list[float] | None:
    """The seconds that a PrepClient's loop has waited for rows, and those of everything else; None of other loaders."""
    if not hasattr(loader, "stats"):
        return None
    stats = loader.stats()
    return [stats[name] for name in ("wait_s", "copy_s", "own_s", "rest_s")]


def touch(batch: Any) -> int:
    """Reads two pixels of every image, so that a batch that is not really there would be noticed."""
    return int(batch[:, 0, 0, 0].sum()) + int(batch[:, -1, -1, -1].sum())


def check(batch: Any, size: int, pixels: int) -> None:
    """Ends the process if the contender does other work than it should."""
    shape, dtype = sorted(batch.shape), str(batch.dtype).removeprefix("torch.")
    if shape != sorted((size, pixels, pixels, 3)) or dtype != "uint8":
        raise SystemExit(f"a batch is {tuple(batch.shape)} of {dtype}")


if __name__ == "__main__":  # some contenders start processes that import this again
    main()
