"""Findings of `prepserver doctor` about the machines of a Ray cluster and the network to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from prepserver.cli.hardware import Finding
from prepserver.engine.network import Node


def cluster(address: str, seconds: float, side: int, core_per_s: float) -> Iterator[Finding]:
    """Connects to a cluster and measures its network.

    Args:
        address: See `prepserver.config.Settings.ray_address`.
        seconds: How long to measure each machine.
        side: Side of the images that it should carry, in pixels.
        core_per_s: Images/s that a core makes.
    """
    if find_spec("ray") is None:
        yield Finding("Ray", "broken", "not installed", "pip install 'prepserver[ray]'")
        return
    from prepserver.engine.cluster import connect
    from prepserver.engine.network import measure

    try:
        ray = connect(address)
    except Exception as e:  # noqa: BLE001 - Ray raises many kinds
        text = f"no cluster at {address}: {' '.join(str(e).split())[:300]}"
        yield Finding("Ray", "broken", text, "ray start --address=HEAD:6379 --num-cpus=0 on this machine")
        return
    try:
        nodes = measure(ray, seconds)
    finally:
        ray.shutdown()
    yield from judge(nodes, side, core_per_s)


def judge(nodes: Sequence[Node], side: int, core_per_s: float) -> Iterator[Finding]:
    """A finding for each machine, and one for all of them together.

    Args:
        nodes: See `prepserver.engine.network.measure`.
        side: See `cluster`.
        core_per_s: See `cluster`.
    """
    if not nodes:
        fix = "ray start --address=HEAD:6379 on each machine that should make rows"
        yield Finding("Ray", "broken", "no other machine of the cluster has CPUs", fix)
        return
    for node in nodes:
        name = f"network from {node.host}"
        if node.why:
            fix = "this machine must reach all its TCP ports; it needs the same Python and libraries (docs/ray.md)"
            yield Finding(name, "broken", node.why, fix)
        else:
            trip = f", round trip {node.round_trip_s * 1e3:.2f} ms" if node.round_trip_s else ""
            yield _carries(name, node.bytes_per_s, trip, node.cpus, side, core_per_s)


def _carries(name: str, bytes_per_s: float, trip: str, cpus: int, side: int, core_per_s: float) -> Finding:
    """Whether a network carries the rows that `cpus` CPUs make."""
    row_bytes = side * side * 3
    per_s = bytes_per_s / row_bytes
    text = (
        f"{bytes_per_s / 1e6:,.0f} MB/s{trip}: carries {per_s:,.0f} images/s of {side} pixels ({row_bytes:,} bytes "
        f"each). Its {cpus} CPUs make up to {cpus * core_per_s:,.0f} if they are as fast as this machine's"
    )
    figures = {"bytes_per_s": round(bytes_per_s), "images_per_s": round(per_s, 1)}
    if per_s >= cpus * core_per_s:
        return Finding(name, "ok", text, figures=figures)
    enough = max(1, int(per_s / core_per_s))
    fix = f"use a faster network, smaller rows, or at most {enough} remote workers there; more would wait for it"
    return Finding(name, "slow", text, fix, figures)
