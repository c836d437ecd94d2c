"""How many ready rows per second can a job get, and what do daemon and client cost when the workers do not decode?

The real daemon, the workers' real loop, a real client; what fills rows is replaced (`bench.harness.stand_in`).

*Rates*: workers leave rows as they are (``nothing``), so that only the path is measured, or copy each from a ready one
(``copy``); then workers, client and all memory traffic share the cores. The job takes batches as fast as they come,
lent (`zero_copy`) or copied (the default), for 3 s.

*Cost*: 3000 images/s in batches of 64, as in `peers`, and of 256, as in the README. Either the workers set the pace,
by sleeping for as long as decoding would take, and the job waits for each batch; or rows are ready at once, and the
job takes a batch each 21 or 85 ms. The cost is the user and system time of the daemon's process and of the client's,
all threads. The client's loop only takes batches; where they are copied, the copy (450 MB/s) is in its time.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.proc import cpu_s, machine_busy_s, tree
from bench.harness.rounds import values
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, reach, spread

_LENT_PER_S, _COPIED_PER_S = 40_000.0, 15_000.0
_PACE_PER_S, _PACE_CORES = 3000.0, 0.05
_SIZE = 224
_FILLS = {"nothing": "is left as it is", "copy": "is copied from a ready one"}
_PACES = ("the workers", "the job")
_SOURCE_ROWS = 1 << 24  # so many that no epoch ends
_PAGES_S = 1.0  # the daemon touches the pages of a new ring in this time, once


def measure(run: Run) -> Figures:
    import torch

    torch.set_num_threads(1)
    window_s = 0.5 if run.smoke else 3.0
    rounds: list[list[dict[str, Any]]] = []
    for _ in range(run.rounds(3)):
        rounds.append([])
        for fill, batch, lends in itertools.product(_FILLS, (64, 256), (True, False)):
            with running_server(run.scratch, run.workers, fill=fill) as server:
                found = take(server, batch, lends, window_s)
            rounds[-1].append({"fill": fill, "batch": batch, "lends": lends, **found})
        for pace, batch, lends in itertools.product(_PACES, (64, 256), (True, False)):
            fill, per_s = ("sleep", None) if pace == _PACES[0] else ("nothing", _PACE_PER_S)
            with running_server(run.scratch, run.workers, fill=fill, sample_s=run.workers / _PACE_PER_S) as server:
                found = take(server, batch, lends, 2 * window_s, per_s)
            rounds[-1].append({"pace": pace, "batch": batch, "lends": lends, **found})
    return {"workers": run.workers, "rounds": rounds}


def take(server: Server, batch: int, lends: bool, window_s: float, pace_per_s: float | None = None) -> dict[str, Any]:
    """Takes batches for a while.

    Args:
        server: The daemon.
        batch: Images per batch.
        lends: Whether batches are lent (``zero_copy``) or copied, as is the default.
        window_s: For how long, after a warm-up.
        pace_per_s: Images per second that the job wants; None for all that there are.

    Returns:
        ``images_per_s``, and the user and system time of processes with all their threads: ``daemon_cores``,
        ``client_cores`` (this process, whose loop does nothing else), ``others_cores`` of the rest of the machine.
    """
    from prepclient import RandomResizedCrop, SyntheticImages

    source, ops = SyntheticImages(_SOURCE_ROWS), [RandomResizedCrop(_SIZE)]
    with server.client(source, ops, batch_size=batch, zero_copy=lends) as client:
        batches = iter(client)
        for _ in range(max(16, 4096 // batch)):  # the ring's pages, and the first blocks for copies
            next(batches)
        time.sleep(_PAGES_S)
        children = [pid for pid in tree([server.pid]) if pid != server.pid]
        began_s, count = time.monotonic(), 0
        before = cpu_s([server.pid]), time.process_time(), cpu_s(children), machine_busy_s()
        while (now_s := time.monotonic()) - began_s < window_s:
            if pace_per_s is not None and (ahead_s := began_s + count * batch / pace_per_s - now_s) > 0:
                time.sleep(ahead_s)
            next(batches)
            count += 1
        elapsed_s = time.monotonic() - began_s
        after = cpu_s([server.pid]), time.process_time(), cpu_s(children), machine_busy_s()
    daemon, own, workers, machine = ((b - a) / elapsed_s for a, b in zip(before, after, strict=True))
    return {
        "images_per_s": count * batch / elapsed_s, "daemon_cores": daemon, "client_cores": own,
        "others_cores": max(0.0, machine - daemon - own - workers),
    }  # fmt: skip


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    rates = Sheet(
        f"Ready rows of {_SIZE}x{_SIZE}x3, 1 job, {result['workers']} workers, images/s",
        ("a worker's row", "images per batch", "lent", "target", "reached", "copied", "target", "reached"),
    )
    for (fill, words), batch in itertools.product(_FILLS.items(), (64, 256)):
        cells: list[str] = []
        for lends, target in ((True, _LENT_PER_S), (False, _COPIED_PER_S)):
            found = values(rounds, "images_per_s", {"fill": fill, "batch": batch, "lends": lends})
            cells += [spread(found), *reach(statistics.median(found), ">=", target, ".0f")]
        rates.rows.append((words, str(batch), *cells))
    costs = Sheet(
        f"CPU at {_PACE_PER_S:.0f} images/s, % of one core",
        (
            *("the pace is set by", "images per batch", "batches are", "images/s", "daemon", "client", "together"),
            *("target", "reached"),
        ),
    )
    for pace, batch, lends in itertools.product(_PACES, (64, 256), (True, False)):
        which = {"pace": pace, "batch": batch, "lends": lends}
        daemon, client = ([100 * x for x in values(rounds, f"{who}_cores", which)] for who in ("daemon", "client"))
        both = [a + b for a, b in zip(daemon, client, strict=True)]
        costs.rows.append((
            pace, str(batch), "lent" if lends else "copied", spread(values(rounds, "images_per_s", which)),
            spread(daemon, ".1f"), spread(client, ".1f"), spread(both, ".1f"),
            *reach(statistics.median(both), "<", 100 * _PACE_CORES),
        ))  # fmt: skip
    return [rates, costs]


CASE = Case("Delivery of ready rows", measure, sheets)
