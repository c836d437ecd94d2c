"""What doctor says about the machines of a cluster."""

from __future__ import annotations

from prepserver.cli.network import judge
from prepserver.engine.network import Node

FAST, SLOW, BOTH = (
    Node("fast", 32, "", 1e-4, 10e9),
    Node("slow", 32, "", 2e-3, 125e6),
    Node("2 machines", 64, "", 0.0, 6e9),
)


def test_a_network_that_carries_less_than_its_cpus_make_is_slow() -> None:
    fast, slow, all_ = judge([FAST, SLOW, BOTH], 224, 1000.0)
    assert fast.severity == "ok"
    assert "10,000 MB/s, round trip 0.10 ms: carries 66,433 images/s of 224 pixels (150,528 bytes each)" in fast.text
    assert slow.severity == "slow"
    assert slow.figures == {"bytes_per_s": 125_000_000, "images_per_s": 830.4}
    assert "at most 1 remote workers there" in slow.fix
    assert (all_.name, all_.severity) == ("network from 2 machines", "slow")
    assert all_.text.startswith("6,000 MB/s: carries ")
    assert "64 CPUs make up to 64,000" in all_.text
    assert "at most 39 remote workers" in all_.fix


def test_a_machine_that_cannot_be_reached_is_broken() -> None:
    (found,) = judge([Node("far", 8, "TimeoutError: timed out")], 224, 1000.0)
    assert (found.severity, found.text) == ("broken", "TimeoutError: timed out")
    (found,) = judge([], 224, 1000.0)
    assert found.severity == "broken"
    assert "no other machine" in found.text
