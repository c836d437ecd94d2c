"""Going on in the middle of a dataset of 10^9 samples: what a checkpoint holds, and how long the first batch takes.

``python bench/resume.py [--smoke] [--markdown]``. Writes ``bench/out/resume.json``.

A process with everything imported and a daemon that runs. Again and again, at a random position of a random pass:
a new `PrepClient`, `load_state_dict`, first batch of 64. Its samples are compared with those that the order names.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import command
import msgpack
from fingerprint import fingerprint
from proc import memory_mib
from server import Server, running_server
from tables import Sheet, reached

_SAMPLES = 10**9
_PASSES = 100
_BATCH = 64
_PAUSE_S = 0.3  # the workers end the chunks of the client before, which nobody needs
_SHUFFLES: dict[str, tuple[bool | str, str]] = {
    "sequential": (False, "none"), "cyclic": (True, "cyclic"), "full": ("full", "full"),
}  # fmt: skip
"""Name in the table -> the client's word, the order's word."""

_TARGETS = {"state_bytes": 200.0, "first_batch_ms": 500.0}


def main() -> None:
    command.run(
        "resume", "Resuming at any position of 10^9 samples.",
        lambda arguments: measure(arguments.workers, 3 if arguments.smoke else 40),
        sheets, takes_data=False,
    )  # fmt: skip


def measure(workers: int, times: int) -> dict[str, Any]:
    machine = fingerprint()
    chance = random.Random(1)
    orders: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        with running_server(scratch, workers) as server:
            listing_ms = resume(server, "cyclic", None)["first_batch_ms"]
            index_bytes = sum(p.stat().st_size for p in (scratch / "index").rglob("*") if p.is_file())
            rss_mib = [memory_mib([server.pid])["Rss"]]
            for order in _SHUFFLES:
                places = [chance.randrange(_SAMPLES * _PASSES) for _ in range(times)]
                orders[order] = [resume(server, order, place) for place in places]
                rss_mib.append(memory_mib([server.pid])["Rss"])
            workers_mib = [memory_mib([pid]) for pid in server.worker_pids()]
    return {
        "machine": machine, "workers": workers, "samples": _SAMPLES, "listing_ms": listing_ms,
        "index_bytes": index_bytes, "daemon_rss_mib": rss_mib, "workers_mib": workers_mib, "orders": orders,
    }  # fmt: skip


def resume(server: Server, order: str, position: int | None) -> dict[str, float]:
    """Milliseconds to the first batch, from a new client on; at the beginning for None. Bytes of its state."""
    from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages

    shuffle, word = _SHUFFLES[order]
    time.sleep(_PAUSE_S)
    began_ns = time.monotonic_ns()
    with PrepClient(
        SyntheticImages(_SAMPLES), [RandomResizedCrop(224), RandomHorizontalFlip()], batch_size=_BATCH, seed=3,
        shuffle=shuffle, runtime_dir=server.runtime_dir, fields="dict",
    ) as client:  # fmt: skip
        if position is not None:
            pass_ = position // _SAMPLES
            here = {"epoch": pass_, "epoch_start": pass_ * _SAMPLES, "position": position}
            client.load_state_dict({**client.state_dict(), **here})
        fields = next(iter(client))
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


def sheets(result: dict[str, Any]) -> list[Sheet]:
    first = Sheet(
        f"Resuming at random positions of {_PASSES} passes over 10^9 samples, {result['workers']} workers",
        ("order", "positions", "first batch of 64, ms: p50", "max", "to reach", "reached by the worst"),
    )
    for order, found in result["orders"].items():
        values = [f["first_batch_ms"] for f in found]
        target = _TARGETS["first_batch_ms"]
        first.rows.append((
            order, str(len(values)), f"{statistics.median(values):.1f}", f"{max(values):.1f}", f"< {target:g}",
            reached(max(values), target),
        ))  # fmt: skip
    size = Sheet("The state, bytes", ("as", "most", "to reach", "reached"))
    every = [f for found in result["orders"].values() for f in found]
    for name in ("json", "msgpack"):
        most, target = max(f[f"{name}_bytes"] for f in every), _TARGETS["state_bytes"]
        size.rows.append((name, f"{most:.0f}", f"< {target:g}", reached(most, target)))
    rss = result["daemon_rss_mib"]
    memory = Sheet("What 10^9 samples cost", ("", "found"))
    memory.rows += [
        ("first attach ever, the listing included, ms", f"{result['listing_ms']:.0f}"),
        ("index, MB", f"{result['index_bytes'] / 1e6:.1f}"),
        ("daemon's RSS after the first attach, MiB", f"{rss[0]:.0f}"),
        (f"... after {len(every)} more, MiB", f"{rss[-1]:.0f}"),
        *((f"worker {n}, own (Pss_Anon), MiB", f"{m['Pss_Anon']:.0f}") for n, m in enumerate(result["workers_mib"])),
    ]
    return [first, size, memory]


if __name__ == "__main__":
    main()
