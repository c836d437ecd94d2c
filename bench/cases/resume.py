"""How long does it take to resume in the middle of 10^9 samples, and how large is a checkpoint?

The dataset is `SyntheticImages(10**9)`, whose index does not depend on the number of samples. A daemon runs, and a
process has imported everything. Forty times for each order, at a random position of a hundred passes: a new
`PrepClient`, `load_state_dict`, `iter`, the first batch of 64, and a pause of 0.3 s. Nothing is ready: a ring is made,
and 64 images of 375x500 are decoded. The samples that come are compared with those that the order names.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import Any

import msgpack

from bench.harness.case import Case, Figures, Run
from bench.harness.proc import memory_mib
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, reach

_SAMPLES = 10**9
_PASSES = 100
_PAUSE_S = 0.3  # the workers finish the chunks of the client before, which nobody needs
_SHUFFLES: dict[str, tuple[bool | str, Any]] = {
    "sequential": (False, "none"), "cyclic": (True, "cyclic"), "full": ("full", "full"),
}  # fmt: skip
"""Name in the table -> the client's word, the order's word."""

_STATE_BYTES, _FIRST_BATCH_MS = 200.0, 500.0


def measure(run: Run) -> Figures:
    chance = random.Random(1)
    orders: dict[str, Any] = {}
    with running_server(run.scratch, run.workers) as server:
        listing_ms = resume(server, "cyclic", None)["first_batch_ms"]
        index_bytes = sum(p.stat().st_size for p in (run.scratch / "index").rglob("*") if p.is_file())
        rss_mib = [memory_mib([server.pid])["Rss"]]
        for order in _SHUFFLES:
            places = [chance.randrange(_SAMPLES * _PASSES) for _ in range(3 if run.smoke else 40)]
            orders[order] = [resume(server, order, place) for place in places]
            rss_mib.append(memory_mib([server.pid])["Rss"])
        workers_mib = [memory_mib([pid]) for pid in server.worker_pids()]
    return {
        "workers": run.workers, "listing_ms": listing_ms, "index_bytes": index_bytes, "daemon_rss_mib": rss_mib,
        "workers_mib": workers_mib, "orders": orders,
    }  # fmt: skip


def resume(server: Server, order: str, position: int | None) -> dict[str, float]:
    """Milliseconds from the making of a client to its first batch, and the bytes of its state.

    Args:
        server: The daemon.
        order: A key of `_SHUFFLES`.
        position: Where the client goes on; None for a client that begins.
    """
    from prepclient import SyntheticImages

    shuffle, word = _SHUFFLES[order]
    time.sleep(_PAUSE_S)
    began_ns = time.monotonic_ns()
    with server.client(SyntheticImages(_SAMPLES), seed=3, shuffle=shuffle, fields="dict") as client:
        if position is not None:
            pass_ = position // _SAMPLES
            here = {"epoch": pass_, "epoch_start": pass_ * _SAMPLES, "position": position}
            client.load_state_dict({**client.state_dict(), **here})
        fields: Any = next(iter(client))
        first_ns = time.monotonic_ns()
        state = client.state_dict()
    _check(word, position or 0, fields["index"].tolist())
    return {
        "first_batch_ms": (first_ns - began_ns) / 1e6, "json_bytes": len(json.dumps(state)),
        "msgpack_bytes": len(msgpack.packb(state)),
    }  # fmt: skip


def _check(word: Any, position: int, indices: list[int]) -> None:
    from prepserver.order import make_order

    expected = make_order(word, _SAMPLES, 3).indices(position, len(indices))
    if indices != expected:
        raise SystemExit(f"{word} order at {position}: {indices[:4]} ... and not {expected[:4]} ...")


def sheets(result: Figures) -> list[Sheet]:
    first = Sheet(
        f"Resuming at random positions of {_PASSES} passes over 10^9 samples, {result['workers']} workers",
        ("order", "positions", "first batch of 64, ms: p50", "max", "target", "reached by the worst"),
    )
    for order, found in result["orders"].items():
        values = [f["first_batch_ms"] for f in found]
        first.rows.append((
            order, str(len(values)), f"{statistics.median(values):.1f}", f"{max(values):.1f}",
            *reach(max(values), "<", _FIRST_BATCH_MS),
        ))  # fmt: skip
    every = [f for found in result["orders"].values() for f in found]
    size = Sheet("The state, bytes", ("as", "most", "target", "reached"))
    for name in ("json", "msgpack"):
        most = max(f[f"{name}_bytes"] for f in every)
        size.rows.append((name, f"{most:.0f}", *reach(most, "<", _STATE_BYTES)))
    rss = result["daemon_rss_mib"]
    memory = Sheet("What 10^9 samples cost", ("", "found"))
    memory.rows += [
        ("first attach ever, with the listing, ms", f"{result['listing_ms']:.0f}"),
        ("index, MB", f"{result['index_bytes'] / 1e6:.1f}"),
        ("daemon's RSS after the first attach, MiB", f"{rss[0]:.0f}"),
        (f"... after {len(every)} more, MiB", f"{rss[-1]:.0f}"),
        *((f"worker {n}, own (Pss_Anon), MiB", f"{m['Pss_Anon']:.0f}") for n, m in enumerate(result["workers_mib"])),
    ]
    return [first, size, memory]


CASE = Case("Resuming", measure, sheets)
