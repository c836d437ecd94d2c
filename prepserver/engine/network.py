"""Measures how fast bytes reach this machine from the others of a Ray cluster, for `prepserver doctor`.

They come over the lines that rows use: on each machine with CPUs, an actor sends as many bytes as it is asked for.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from prepserver.engine.build import build, differences
from prepserver.engine.cluster import address_here
from prepserver.engine.line import Address, LineClosed, TcpLine, TcpListener

_LINES = 4  # to each machine: one alone may not fill a fast network
_BYTES = 4 << 20  # asked for at a time
_ROUND_TRIPS = 20
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster as measured from this one, or all machines together."""

    host: str  # its name, or the number of machines
    cpus: int  # how many of its CPUs Ray may use
    why: str = ""  # why it cannot be reached, or would make other rows; empty if it can make rows for this machine
    round_trip_s: float = 0.0  # from a small question to its answer, median
    bytes_per_s: float = 0.0  # that arrive from it while the others send nothing


class Sender:
    """The actor."""

    def __init__(self) -> None:
        self._listeners = [TcpListener(address_here()) for _ in range(_LINES)]

    def about(self) -> tuple[str, dict[str, str], list[tuple[Address, bytes]]]:
        """Name of its machine, its build, and the address and token of each listener."""
        return socket.gethostname(), build(), [(each.address, each.token) for each in self._listeners]

    def serve(self) -> None:
        """Sends until the peers hang up."""
        threads = [threading.Thread(target=self._send, args=(each.accept(),)) for each in self._listeners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _send(line: TcpLine) -> None:
        rows, wanted = np.zeros(_BYTES, np.uint8), np.zeros(1, np.int64)
        try:
            while True:
                line.receive_rows(wanted)
                line.send_rows(rows[: wanted[0]])
        except LineClosed:
            line.close()


def measure(ray: Any, seconds: float) -> list[Node]:
    """Measures each machine for some seconds, and then all at once for as long; `ray` is the module, connected.

    Returns the other machines with CPUs, and then those that answered, all together, if there are several.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    found: list[Node] = []
    lines: list[TcpLine] = []  # to those that answered
    with contextlib.ExitStack() as opened:
        for node in ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0))
            if not node["Alive"] or node["NodeID"] == here or not cpus:
                continue
            host = node["NodeManagerHostname"]
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            try:
                actor = ray.remote(num_cpus=0, scheduling_strategy=place)(Sender).remote()
                host, theirs, doors = ray.get(actor.about.remote(), timeout=_START_S)
                if other := differences(build(), theirs):
                    raise ValueError(f"it would make other rows: {'; '.join(other)}")
                actor.serve.remote()
                reached = [opened.enter_context(contextlib.closing(TcpLine.to(*door))) for door in doors]
                found.append(Node(host, cpus, "", round_trip_s(reached[0]), bytes_per_s(reached, seconds)))
                lines += reached
            except Exception as e:  # noqa: BLE001 - whatever it is, it is the finding
                found.append(Node(host, cpus, f"{type(e).__name__}: {' '.join(str(e).split())}"[:1000]))
        answered = [node for node in found if not node.why]
        if len(answered) > 1:
            name, cpus = f"{len(answered)} machines", sum(node.cpus for node in answered)
            try:
                found.append(Node(name, cpus, bytes_per_s=bytes_per_s(lines, seconds)))
            except LineClosed as e:
                found.append(Node(name, cpus, f"a line broke while all of them sent: {e}"))
    return found


def round_trip_s(line: TcpLine) -> float:
    """The median time from a small question to a `Sender` until its answer."""
    one, took_s = np.ones(1, np.int64), []
    for _ in range(_ROUND_TRIPS):
        began_s = time.monotonic()
        line.send_rows(one)
        line.receive_rows(np.empty(1, np.uint8))
        took_s.append(time.monotonic() - began_s)
    return statistics.median(took_s)


def bytes_per_s(lines: Sequence[TcpLine], seconds: float) -> float:
    """The bytes per second that `Sender`s send over all these lines together."""
    until_s = (began_s := time.monotonic()) + seconds

    def take(line: TcpLine) -> int:
        rows, wanted, received = np.empty(_BYTES, np.uint8), np.full(1, _BYTES), 0
        line.send_rows(wanted)  # two requests are always open, so that the line is never idle
        while True:
            is_last = time.monotonic() > until_s
            if not is_last:
                line.send_rows(wanted)
            received += line.receive_rows(rows)
            if is_last:
                return received

    with ThreadPoolExecutor(len(lines)) as pool:
        received = sum(pool.map(take, lines))
    return received / (time.monotonic() - began_s)
