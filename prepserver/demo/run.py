"""The demo from beginning to end: a private daemon, the shared phase, the phase without it, the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from prepserver.config import ConfigError, auto_workers, parse_workers
from prepserver.demo.phase import PhaseFigures, run_phase
from prepserver.demo.processes import DemoFailure, running_server, scratch_folder
from prepserver.demo.show import Display, print_result
from prepserver.pipeline.sources import ImageFolder, SourceSpec, SyntheticImages
from prepserver.source import SourceError, build_index
from prepserver.telemetry.logs import counted

OK, FAILED, USAGE = 0, 1, 2

_BATCH = 64
_SIZE = 224
_SYNTHETIC_SAMPLES = 20_000
_SYNTHETIC_CLASSES = 10


class Plan(NamedTuple):
    """Numbers of training jobs, of the daemon's workers, and of the workers of each DataLoader."""

    jobs: int
    workers: int
    own_workers: int


def run_demo(arguments: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code.

    The DataLoaders together get as many processes as the daemon has, rounded up to the same number for each.
    """
    display = Display()
    # As Ctrl-C: ends everything that the demo started, and removes its folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        workers = parse_workers(arguments.workers, "--workers") or auto_workers()
        plan = Plan(arguments.jobs, workers, -(-workers // arguments.jobs))
        with scratch_folder("prepserver-demo-") as scratch:
            _run(plan, _source(arguments.data), scratch, display, as_json=arguments.json)
    except (ConfigError, DemoFailure, SourceError) as e:
        display.say(f"prepserver demo: {e}")
        return USAGE if isinstance(e, ConfigError) else FAILED
    return OK


def _source(data: str | None) -> SourceSpec:
    if data is None:
        return SyntheticImages(_SYNTHETIC_SAMPLES, num_classes=_SYNTHETIC_CLASSES)
    return ImageFolder(str(Path(data).expanduser().absolute()))


def _run(plan: Plan, source: SourceSpec, scratch: Path, display: Display, *, as_json: bool) -> None:
    began_s = time.monotonic()
    listing = build_index(source, scratch / "index", lambda _found: None)
    what = f"images in {source.root}" if isinstance(source, ImageFolder) else "synthetic photos"
    display.say(
        f"{plan.jobs} training jobs over {listing.samples} {what}: random crops of {_SIZE}, flips, batches of {_BATCH}"
    )
    config: dict[str, Any] = {
        "source": source.to_wire(), "index_path": str(listing.path), "classes": max(1, listing.num_classes),
        "runtime_dir": str(scratch / "run"), "batch_size": min(_BATCH, listing.samples), "size": _SIZE,
        "workers": plan.own_workers,
    }  # fmt: skip
    shared_jobs, own_jobs = (
        [{**config, "kind": kind, "seed": number} for number in range(plan.jobs)] for kind in ("shared", "own")
    )
    title = f"1 of 2: one shared stream, made by {counted(plan.workers, 'worker')}"
    with running_server(scratch, ["--workers", str(plan.workers)]) as server, display.phase(title):
        shared = run_phase(shared_jobs, scratch, server, display.look)
    with display.phase(f"2 of 2: each job on its own DataLoader (Pillow) with {counted(plan.own_workers, 'worker')}"):
        own = run_phase(own_jobs, scratch, None, display.look)
    took_s = time.monotonic() - began_s
    if as_json:
        found = {
            "plan": plan._asdict(), "shared": dataclasses.asdict(shared), "own": dataclasses.asdict(own),
            "server_start_s": round(server.start_s, 3), "took_s": round(took_s, 1),
        }  # fmt: skip
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        print_result(shared, own, _notes(plan, shared, server.start_s, took_s))


def _notes(plan: Plan, shared: PhaseFigures, start_s: float, took_s: float) -> list[str]:
    note = (
        "The network is tiny, so that data is the bottleneck: a large one would hide the difference in images/s, "
        "but not in CPU time."
    )
    if shared.device == "cpu":
        note += " No GPU was found: the network trains on the same CPUs, on every fourth pixel."
    return [
        note,
        f"Shared: {counted(plan.workers, 'worker')}, running before the jobs (started in {start_s:.1f} s). Own: "
        f"{plan.own_workers} for each job, {plan.own_workers * plan.jobs} in all. CPU time is that of jobs, workers "
        f"and daemon. Each phase was measured for about {shared.window_s:.0f} s; the demo took {took_s:.0f} s.",
    ]
