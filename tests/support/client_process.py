"""A training process for tests: does what lines on stdin say, answers with lines of JSON on stdout.

Run by `tests.support.clients` in a process of its own, as a script or by `main_with`; `rows_of` also serves tests in
process.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

import prepclient
from prepclient import PrepClient, PrepClientError
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import source_from_wire
from tests.support.device_client import DeviceClient
from tests.support.fake_device import RunningDevice


def rows_of(batch: dict[str, Any]) -> list[tuple[int, str]]:
    """For each row: the sample's index, and a digest over its images, label and index."""
    indices = batch["index"].tolist()
    labels = batch["label"].tolist()
    views = batch["image"] if isinstance(batch["image"], tuple) else (batch["image"],)
    found = []
    for *images, label, index in zip(*views, labels, indices, strict=True):
        digest = hashlib.sha256()
        for image in images:
            digest.update(image.contiguous().cpu().numpy().tobytes())
            digest.update(f"{image.dtype} {tuple(image.shape)} {label} {index}".encode())
        found.append((index, digest.hexdigest()[:24]))
    return found


class _Actor:
    def __init__(self) -> None:
        self._client: PrepClient | None = None
        self._iterator: Iterator[Any] | None = None
        self._last: dict[str, torch.Tensor] = {}

    @property
    def client(self) -> PrepClient:
        assert self._client is not None
        return self._client

    def do(self, order: dict[str, Any]) -> None:
        answer = getattr(self, "do_" + order.pop("do"))(**order)
        say({"done": answer})

    def do_open(self, source: dict[str, Any], ops: list[dict[str, Any]], client: dict[str, Any]) -> None:
        pipeline = Pipeline.from_wire(ops)
        make: Callable[..., PrepClient] = PrepClient
        if client.get("device") == "fake":
            make = partial(DeviceClient, fake=RunningDevice())
            del client["device"]
        for name, record in (("sharding", prepclient.Sharding), ("joining", prepclient.Joining)):
            if name in client:
                client[name] = record(**client[name])
        self._client = make(source_from_wire(source), pipeline.ops, fields="dict", **client)

    def do_attach(self) -> int:
        return len(self.client)

    def do_read(self, batches: int | None = None, new: bool = False, pause_s: float = 0.0) -> int:
        """Reads `batches` (or what is left) of the running epoch, or of a new one."""
        if self._iterator is None or new:
            self._iterator = iter(self.client)
        read = 0
        while batches is None or read < batches:
            batch = next(self._iterator, None)
            if batch is None:
                self._iterator = None
                break
            self._last = batch
            if isinstance(self.client, DeviceClient):
                self.client.fake.finish_all()
            say({"rows": rows_of(batch), "epoch": self.client.epoch})
            read += 1
            if pause_s:
                time.sleep(pause_s)
        return read

    def do_len(self) -> int:
        return len(self.client)

    def do_state(self) -> dict[str, Any]:
        return self.client.state_dict()

    def do_load(self, state: dict[str, Any]) -> None:
        self.client.load_state_dict(state)
        self._iterator = None

    def do_set_epoch(self, epoch: int) -> None:
        self.client.set_epoch(epoch)
        self._iterator = None

    def do_write(self) -> None:
        """Writes into the batch that was read last."""
        self._last["image"].add_(1)

    def do_drop(self) -> None:
        """Forgets the batch that was read last, and what lies about unreachable."""
        self._last = {}
        gc.collect()

    def do_close(self) -> None:
        self._last = {}
        self._iterator = None
        self.client.close()

    def do_become(self, uid: int) -> None:
        """Everything is imported by now: the packages may lie where that user may not read."""
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    def do_fork(self) -> int:
        """A child that inherits everything open and does nothing, until it is killed."""
        pid = os.fork()
        if pid == 0:
            while True:
                time.sleep(3600)
        return pid


def say(answer: Any) -> None:
    """One line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Until stdin ends."""
    torch.set_num_threads(1)
    actor = _Actor()
    say({"hello": os.getpid(), "version": prepclient.__version__})
    for line in sys.stdin:
        try:
            actor.do(json.loads(line))
        except PrepClientError as e:
            extra = {"field": getattr(e, "field", None), "index": getattr(e, "index", None)}
            say({"error": type(e).__name__, "text": str(e), **extra})


def main_with(environment: dict[str, str], *pipes: Connection) -> None:
    """As the script does, with this environment, and these pipes as stdin, stdout and stderr."""
    os.environ.clear()
    os.environ.update(environment)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    main()


if __name__ == "__main__":
    main()
