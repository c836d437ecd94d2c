"""The demo from beginning to end: a private daemon, the shared phase, the phase without it, the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepserver.config import ConfigError, auto_workers, parse_workers
from prepserver.demo.failure import DemoFailure
from prepserver.demo.phase import PhaseFigures, run_phase
from prepserver.demo.server import running_server
from prepserver.demo.show import Display, print_result
from prepserver.pipeline.sources import ImageFolder, SourceSpec, SyntheticImages
from prepserver.source import SourceError, build_index

OK, FAILED, USAGE = 0, 1, 2

_MOST_JOBS = 64
_BATCH = 64
_SIZE = 224
_LONGEST_BASE = 64  # a socket's path has at most 107 bytes
_SYNTHETIC_SAMPLES = 20_000
_SYNTHETIC_CLASSES = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        jobs: Training processes.
        workers: Of the daemon.
        own_workers: Of each DataLoader.
        epochs: Of each job and phase, if the time allows.
    """

    jobs: int
    workers: int
    own_workers: int
    epochs: int

    @classmethod
    def of(cls, jobs: int, workers: str, epochs: int) -> Plan:
        """From the command line.

        The DataLoaders get as many processes in sum as the daemon has, and at least one each: the same share of
        the machine, rounded in their favour.

        Raises:
            ConfigError: Naming what cannot be.
        """
        if not 1 <= jobs <= _MOST_JOBS:
            raise ConfigError(f"--jobs {jobs}: from 1 to {_MOST_JOBS}")
        if epochs < 1:
            raise ConfigError(f"--epochs {epochs}: at least 1")
        count = parse_workers(workers, "--") or auto_workers()
        return cls(jobs, count, -(-count // jobs), epochs)


def run_demo(arguments: argparse.Namespace) -> int:
    """Runs ``prepserver demo``.

    Args:
        arguments: ``data`` (a folder or None), ``jobs``, ``workers`` (a number or ``auto``), ``epochs``, ``json``.

    Returns:
        The exit code: 0, 1 if something failed, 2 for an impossible argument.
    """
    display = Display()
    # As Ctrl-C: everything that the demo started ends, and its directory goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scratch = _make_scratch()
    try:
        plan = Plan.of(arguments.jobs, str(arguments.workers), arguments.epochs)
        _Demo(plan, _source(arguments.data), scratch, display).run(as_json=arguments.json)
    except ConfigError as e:
        display.say(f"prepserver demo: {e}")
        return USAGE
    except (DemoFailure, SourceError) as e:
        display.say(f"prepserver demo: {e}")
        return FAILED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return OK


def _make_scratch() -> Path:
    """A directory of the demo's own, short enough to hold a socket."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="prepserver-demo-", dir=base if len(base) <= _LONGEST_BASE else "/tmp"))


def _source(data: str | None) -> SourceSpec:
    if data is None:
        return SyntheticImages(_SYNTHETIC_SAMPLES, num_classes=_SYNTHETIC_CLASSES)
    return ImageFolder(str(Path(data).expanduser().absolute()))


class _Demo:
    def __init__(self, plan: Plan, source: SourceSpec, scratch: Path, display: Display) -> None:
        self._plan = plan
        self._source = source
        self._scratch = scratch
        self._display = display

    def run(self, *, as_json: bool) -> None:
        began_s = time.monotonic()
        plan, display = self._plan, self._display
        listing = build_index(self._source, self._scratch / "index", lambda _found: None)
        what = f"images in {self._source.root}" if isinstance(self._source, ImageFolder) else "synthetic photos"
        display.say(f"{plan.jobs} training jobs over {listing.n} {what}: random crops of {_SIZE}, flips, batches of "
                    f"{_BATCH}")  # fmt: skip
        config: dict[str, Any] = {
            "source": self._source.to_wire(), "index_path": str(listing.path), "classes": max(1, listing.num_classes),
            "runtime_dir": str(self._scratch / "run"), "batch_size": min(_BATCH, listing.n), "size": _SIZE,
            "workers": plan.own_workers,
        }  # fmt: skip
        configs = [{**config, "seed": number} for number in range(plan.jobs)]
        with (
            running_server(self._scratch, plan.workers) as server,
            display.phase(f"1 of 2: one shared stream, made by {_count(plan.workers, 'worker')}"),
        ):
            start_s = server.start_s
            shared = run_phase([{**c, "kind": "shared"} for c in configs], self._scratch, server, plan.epochs,
                               display.look)  # fmt: skip
        with display.phase(
            f"2 of 2: each job on its own DataLoader (Pillow) with {_count(plan.own_workers, 'worker')}"
        ):
            own = run_phase([{**c, "kind": "own"} for c in configs], self._scratch, None, plan.epochs, display.look)
        took_s = time.monotonic() - began_s
        if as_json:
            sys.stdout.write(json.dumps(self._json(shared, own, start_s, took_s)) + "\n")
            return
        print_result(shared, own, self._notes(shared, start_s, took_s))

    def _json(self, shared: PhaseFigures, own: PhaseFigures, start_s: float, took_s: float) -> dict[str, Any]:
        return {
            "plan": dataclasses.asdict(self._plan),
            "shared": dataclasses.asdict(shared),
            "own": dataclasses.asdict(own),
            "server_start_s": round(start_s, 3),
            "took_s": round(took_s, 1),
        }

    def _notes(self, shared: PhaseFigures, start_s: float, took_s: float) -> list[str]:
        plan = self._plan
        note = (
            "The network is tiny on purpose, so that data is the bottleneck: a large network hides the difference "
            "in images/s, not the one in CPU time."
        )
        if shared.device == "cpu":
            note += " No GPU: it trains on the same CPUs, on every fourth pixel."
        return [
            note,
            f"Shared: {_count(plan.workers, 'worker')}, running before the jobs (started in {start_s:.1f} s). Own: "
            f"{plan.own_workers} for each job, {plan.own_workers * plan.jobs} in all. CPU time counts jobs, workers "
            f"and daemon. Measured for {shared.window_s:.0f} s a phase; {took_s:.0f} s in all.",
        ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
