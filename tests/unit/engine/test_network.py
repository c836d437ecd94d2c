"""What doctor measures of a network, between two ends in this process."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace as Plain
from typing import Any

import pytest

from prepserver.engine import network
from prepserver.engine.line import TcpLine
from tests.support.waiting import wait_until


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As much of Ray as is used here: machines 1 to 3, of which 1 is this one, and actors in this process."""
    util = Plain(
        get_node_ip_address=lambda: "127.0.0.1",
        scheduling_strategies=Plain(NodeAffinitySchedulingStrategy=lambda _node, soft: None),
    )
    nodes = [
        {"NodeID": number, "Alive": True, "Resources": {"CPU": 8.0}, "NodeManagerHostname": f"node{number}"}
        for number in (1, 2, 3)
    ]
    made = Plain(
        util=util, nodes=lambda: nodes, get_runtime_context=lambda: Plain(get_node_id=lambda: 1),
        remote=lambda **_: lambda cls: Plain(remote=lambda: _actor(cls())), get=lambda answer, timeout: answer,
    )  # fmt: skip
    for name, module in (
        ("ray", made),
        ("ray.util", util),
        ("ray.util.scheduling_strategies", util.scheduling_strategies),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    threads = threading.active_count()
    yield made
    wait_until(lambda: threading.active_count() <= threads, why=threading.enumerate)


def _actor(sender: network.Sender) -> Any:
    serves = threading.Thread(target=lambda: sender.serve())
    return Plain(about=Plain(remote=sender.about), serve=Plain(remote=serves.start))


@pytest.mark.parametrize("breaks", [False, True])
def test_all_machines_send_at_once(ray: Any, monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    accepted: list[TcpLine] = []
    send, serve = network.Sender._send, network.Sender.serve

    def begin(sender: network.Sender) -> None:
        for line in accepted if breaks else ():
            line.hang_up()  # those of the first machine, which has been measured
        serve(sender)

    monkeypatch.setattr(network.Sender, "_send", staticmethod(lambda line: (accepted.append(line), send(line))))
    monkeypatch.setattr(network.Sender, "serve", begin)
    one, other, both = network.measure(ray, 0.0)
    assert (one.host, one.cpus, one.why, other.why) == (socket.gethostname(), 8, "", "")
    assert (both.host, both.cpus) == ("2 machines", 16)
    assert both.why.startswith("a line broke while all of them sent") == breaks
    assert (both.bytes_per_s > 0) != breaks


@pytest.mark.usefixtures("ray")
def test_bytes_come_over_all_lines() -> None:
    sender = network.Sender()
    serves = threading.Thread(target=sender.serve)
    serves.start()
    _, _, doors = sender.about()
    lines = [TcpLine.to(*door) for door in doors]
    assert network.round_trip_s(lines[0]) > 0
    assert network.bytes_per_s(lines, 0.0) > 0
    for line in lines:
        line.close()
    serves.join()
