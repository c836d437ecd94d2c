"""Training processes in tests' hands, and the same reading done in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from prepclient import Joining, PrepClient, Sharding
from prepserver.pipeline.ops import Op, RandomHorizontalFlip, RandomResizedCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import SourceSpec
from tests.support import client_process, leaks
from tests.support.client_process import rows_of
from tests.support.forked import Forked
from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S, wait_until

# As in a worker. On a busy machine torch's threads spin for each other, and rows take ten times as long.
torch.set_num_threads(1)

__all__ = ["OPS", "ClientError", "ClientProcess", "Rows", "await_heard", "inline_rows", "read", "rows_of"]

Rows = list[tuple[int, str]]
"""(index, digest) of each row, in the order in which they came."""

OPS: tuple[Op, ...] = (RandomResizedCrop(32), RandomHorizontalFlip())


class ClientError(AssertionError):
    """A client process answered with an error.

    Attributes:
        kind: Name of the exception's class.
        text: What it says.
        answer: All of it.
    """

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['text']}")
        self.kind: str = answer["error"]
        self.text: str = answer["text"]
        self.answer = answer


class ClientProcess:
    """One training process. Orders are sent at once; `answer` waits.

    Args:
        runtime_dir: The daemon's.
        source: What to read.
        ops: What to make of it.
        mark: See `leaks`; none if the process is not to be counted as the daemon's.
        uid: Become this user before attaching.
        env: More environment. With a mark of `leaks`, which /proc must show, it is a new interpreter's; otherwise the
            process is forked.
        within: A command that runs a new interpreter, such as in other namespaces.
        client: Arguments of `PrepClient`.

    Attributes:
        version: Of prepserver there, once it has answered.
    """

    def __init__(
        self,
        runtime_dir: Path,
        source: SourceSpec,
        ops: Sequence[Op] = OPS,
        *,
        uid: int | None = None,
        env: dict[str, str] | None = None,
        within: Sequence[str] = (),
        **client: Any,
    ) -> None:
        self.version = ""
        self._errors: list[str] = []
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.process: subprocess.Popen[str] | Forked = (
            Forked(env or {}) if leaks.MARK not in (env or {}) and not within else subprocess.Popen(
                [*within, sys.executable, client_process.__file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment(**(env or {})),
            )
        )  # fmt: skip
        self._readers = [threading.Thread(target=t, daemon=True) for t in (self._read_out, self._read_errors)]
        for reader in self._readers:
            reader.start()
        if uid is not None:
            self.order("become", uid=uid)
        # However slow the pool or a job is, jobs that can share do; whoever tests something else says so.
        client = {
            "joining": Joining(wait_s=600.0, lag="wait"),
            "timeout_s": 1800.0,
            **client,
            "runtime_dir": str(runtime_dir),
        }
        client = {name: dataclasses.asdict(x) if isinstance(x, Sharding | Joining) else x for name, x in client.items()}
        self._orders_pending = 1 + (uid is not None)
        self.order("open", source=source.to_wire(), ops=Pipeline.from_ops(list(ops)).to_wire(), client=client)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return "".join(self._errors)

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def order(self, do: str, **arguments: Any) -> None:
        """Sends an order without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def line(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next line that it says; skips greetings and the answers to the orders of `__init__`.

        Raises:
            ClientError: It says that something is wrong.
            EOFError: It has ended.
        """
        while True:
            try:
                found = self._lines.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"the client said nothing for {timeout_s:g} s; stderr: {self.errors}") from None
            if found is None:
                raise EOFError(f"the client ended with {self.process.wait(timeout_s)}; stderr: {self.errors}")
            if "error" in found:
                raise ClientError(found)
            if "hello" in found:
                self.version = found["version"]
                continue
            if self._orders_pending and "done" in found:
                self._orders_pending -= 1
                continue
            return found

    def answer(self) -> Any:
        """Waits for the end of the last order; rows on the way are dropped."""
        while "done" not in (line := self.line()):
            pass
        return line["done"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """An order and its answer."""
        self.order(do, **arguments)
        return self.answer()

    def collect(self) -> Rows:
        """Rows of a "read" order, until its end."""
        rows: Rows = []
        while "rows" in (line := self.line()):
            rows += [(index, digest) for index, digest in line["rows"]]
        return rows

    def read(self, batches: int | None = None, **arguments: Any) -> Rows:
        """Rows of the next `batches`, or of what is left of the epoch."""
        self.order("read", batches=batches, **arguments)
        return self.collect()

    def batch(self) -> Rows:
        """The next batch of a "read" order under way."""
        return [(index, digest) for index, digest in self.line()["rows"]]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def end(self) -> None:
        """Ends the process, whatever its state."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def stopped(self) -> bool:
        """Whether SIGSTOP has taken effect."""
        return leaks.stopped(self.pid)


def await_heard(server: Server, client: PrepClient) -> None:
    """Waits until the daemon has heard of all that a client in this process has released: ZeroMQ sends in a thread."""
    session = client._attachment.session
    assert session is not None
    wait_until(lambda: session.released_upto in {job["position"] for job in server.status()["jobs"]}, why=server.log)


def read(client: PrepClient, batches: int | None = None) -> Rows:
    """Rows of the next epoch of a client in this process, or of its first `batches`. It needs ``fields="dict"``."""
    rows: Rows = []
    for number, batch in enumerate(client):
        if number == batches:
            break
        rows += rows_of(batch)
        if number + 1 == batches:
            break
    return rows


def inline_rows(source: SourceSpec, epochs: int = 1, ops: Sequence[Op] = OPS, **arguments: Any) -> Rows:
    """What the stream must be: made without any server."""
    with PrepClient(source, ops, fields="dict", inline=True, **arguments) as client:
        return [row for _ in range(epochs) for row in read(client)]
