"""What does a core on another machine give, and what does Ray Data make of the same cores?

A Ray cluster on this machine: a head without CPUs, to which the bridge belongs, and two raylets with one CPU each. Rows
go through a socket, as between machines. A daemon with one local worker and one remote one feeds one client. Both
workers run in the same window, so they are compared under the same load:

- *images per CPU second* of the local worker and of the actor, with all its threads, and the actor's part of the local
  worker's. Beside them what the bridge and the raylets spend for a remote image.
- *first batch*: from the call of ``PrepClient(...)`` to its first batch, with the actors up and the dataset listed.
- *Ray Data* then has the two raylets for itself: the same files, ``map_batches`` with the fastest decoder that
  `bench.peers` has in Python (simplejpeg, torch's uint8 resize) and ``iter_torch_batches``. Both give uint8 rows of
  224 pixels in batches of 64.

Ray takes processes and ports of its own, on 127.0.0.1 only. It needs the extra ``ray``, and Ray Data needs pandas,
pyarrow and pydantic.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run, say
from bench.harness.proc import children, cpu_s
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, reach, spread

_STORE_BYTES = 200 << 20
_BATCH = 64
_UP_S = 120.0
_PART, _FIRST_S, _TIMES = 0.85, 1.0, 2.0


def measure(run: Run) -> Figures:
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # 127.0.0.1 stays what it is
    try:
        from ray.cluster_utils import Cluster
    except ImportError as e:
        raise SystemExit(f"this case needs Ray: pip install 'prepserver[ray]' ({e})") from e
    listed = run.listed(1 << 12)
    common: dict[str, Any] = {
        "object_store_memory": _STORE_BYTES, "node_ip_address": "127.0.0.1", "include_dashboard": False,
    }  # fmt: skip
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    try:
        nodes = [cluster.add_node(num_cpus=1, **common) for _ in range(2)]
        raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, *nodes)]
        window_s = 2.0 if run.smoke else 10.0
        rounds = []
        for number in range(run.rounds(3)):
            say(f"round {number}")
            more = ("--engine", "ray", "--remote-workers", "1", "--address", cluster.address)
            with running_server(run.scratch, 1, more=more) as server:
                found = ours(server, listed, raylets, window_s)
            rounds.append([found | {"ray_data_per_s": ray_data(cluster.address, run, window_s)}])
    finally:
        cluster.shutdown()
    return {"rounds": rounds}


def ours(server: Server, listed: Path, raylets: list[int], window_s: float) -> dict[str, float]:
    """Images/s in sum, images per CPU second by worker, what a remote image costs elsewhere, and the first batch."""
    deadline_s = time.monotonic() + _UP_S
    while len(up := server.worker_pids()) < 2:
        if time.monotonic() > deadline_s:
            raise SystemExit("the remote worker did not come up")
        time.sleep(0.2)
    local, actor = up
    (bridge,) = (pid for pid in children(server.pid) if b"engine.bridge" in Path(f"/proc/{pid}/cmdline").read_bytes())
    with server.client(listed, seed=1) as client:
        next(iter(client))  # the dataset is listed
    called_s = time.monotonic()
    with server.client(listed) as client:
        batches = endless(client)
        next(batches)
        first_s = time.monotonic() - called_s
        until_s = time.monotonic() + window_s / 2
        while time.monotonic() < until_s:
            next(batches)

        def look() -> list[float]:
            workers = server.status()["workers"]
            counts = [workers[0]["rows"], workers[1]["rows"], workers[1]["chunks"]]
            return [time.monotonic(), *counts, *map(cpu_s, ([local], [actor], [bridge], raylets))]

        before, taken = look(), 0
        until_s = time.monotonic() + window_s
        while time.monotonic() < until_s:
            next(batches)
            taken += _BATCH
        elapsed_s, here, there, blocks, local_s, actor_s, bridge_s, raylets_s = (
            b - a for a, b in zip(before, look(), strict=True)
        )
    return {
        "per_s": taken / elapsed_s, "local_per_core": here / local_s, "remote_per_core": there / actor_s,
        "part": there / actor_s / (here / local_s), "bridge_us": bridge_s / there * 1e6,
        "raylets_us": raylets_s / there * 1e6, "first_s": first_s, "block_rows": there / blocks,
    }  # fmt: skip


def endless(client: Any) -> Any:
    """The batches of one epoch after the other."""
    while True:
        yield from client


def ray_data(address: str, run: Run, window_s: float) -> float:
    """Images/s of Ray Data on both raylets, once it is under way."""
    import ray
    import ray.data

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        items = [{"path": str(path), "label": label} for path, label in run.photos.files]
        items *= -(-int(window_s * 4000) // len(items))
        found = ray.data.from_items(items).map_batches(_decode, batch_size=_BATCH, num_cpus=1)
        taken, began_s = 0, 0.0
        for number, batch in enumerate(found.iter_torch_batches(batch_size=_BATCH)):
            if number == 16:
                taken, began_s = 0, time.monotonic()
            taken += len(batch["label"])
            if number > 16 and time.monotonic() - began_s > window_s:
                break
        return taken / (time.monotonic() - began_s)
    finally:
        ray.shutdown()


def _decode(batch: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import simplejpeg
    import torch
    from torch.nn.functional import interpolate

    torch.set_num_threads(1)
    rng = np.random.default_rng()
    rows = np.empty((len(batch["path"]), 224, 224, 3), np.uint8)
    for k, path in enumerate(batch["path"]):
        image = torch.from_numpy(simplejpeg.decode_jpeg(Path(path).read_bytes()))
        height, width = (int(side * rng.uniform(0.5, 1.0)) for side in image.shape[:2])
        top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
        crop = image[top : top + height, left : left + width].permute(2, 0, 1)[None]
        row = interpolate(crop, (224, 224), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        rows[k] = row.flip(1) if rng.random() < 0.5 else row
    return {"image": rows, "label": batch["label"]}


def sheets(result: Figures) -> list[Sheet]:
    def of(name: str) -> list[float]:
        return [found[name] for (found,) in result["rounds"]]

    times = [found["per_s"] / found["ray_data_per_s"] for (found,) in result["rounds"]]
    sheet = Sheet("Remote workers", ("what", "found", "target", "reached"))
    sheet.rows += [
        ("local worker, images per CPU second", spread(of("local_per_core")), "", "-"),
        ("remote worker, images per CPU second", spread(of("remote_per_core")), "", "-"),
        ("remote worker relative to local worker", spread(of("part"), ".2f"),
         *reach(statistics.median(of("part")), ">=", _PART)),
        ("images per block", spread(of("block_rows")), "", "-"),
        ("bridge, us per remote image", spread(of("bridge_us")), "", "-"),
        ("three raylets, us per remote image", spread(of("raylets_us")), "", "-"),
        ("first batch with warm actors, s", spread(of("first_s"), ".2f"),
         *reach(statistics.median(of("first_s")), "<", _FIRST_S)),
        ("one local and one remote worker, images/s", spread(of("per_s")), "", "-"),
        ("Ray Data on two CPUs, images/s", spread(of("ray_data_per_s")), "", "-"),
        ("as a multiple of Ray Data", spread(times, ".2f"), *reach(statistics.median(times), ">=", _TIMES)),
    ]  # fmt: skip
    return [sheet]


CASE = Case("Remote workers", measure, sheets)
