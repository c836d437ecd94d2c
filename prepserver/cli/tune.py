"""``prepserver tune``: finds out what to tune, measures configurations, and recommends one."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from prepserver.cli.ask import AskError, ask_status
from prepserver.cli.exits import OK, USAGE, CommandError
from prepserver.cli.joblog import open_log
from prepserver.cli.keys import keys_at_once, pressed
from prepserver.cli.table import console, print_json
from prepserver.config import auto_most_workers
from prepserver.demo.processes import DemoFailure
from prepserver.pack import PackError
from prepserver.pack.expression import ops_from, source_from
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import ImageFolder, Packed, source_from_wire
from prepserver.plugins import PluginError, codes, load
from prepserver.tune import show
from prepserver.tune.measure import Job, NotMeasured, Stopped, bench
from prepserver.tune.points import Point, every, rates_of, recommended, search

_ORDERS: dict[str, bool | str] = {"none": False, "cyclic": True, "full": "full"}
_STEPS = 20  # calls of the user's step, to time it
# Not decoded and packed: a decoded cache does not depend on how the samples were stored.
_FORMS = (("", False), ("encoded", False), ("decoded", False), ("", True))


@contextlib.contextmanager
def _without_verdicts() -> Iterator[None]:
    """Silences the verdicts that the client logs, one for each measurement."""
    log = logging.getLogger("prepclient")
    usual = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(usual)


@_without_verdicts()
def tune(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    _check_files(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the user's functions may print
            load(arguments.plugins or ())
            job = _job(arguments)
    except (PackError, SpecError, PluginError) as e:
        raise CommandError(e, USAGE) from e
    most = arguments.most_workers or auto_most_workers()
    forms = [(cache, packed) for cache, packed in _FORMS if not (packed and isinstance(job.source, Packed))]
    prefetches = (0, 2 * job.batch_size)
    seen: list[tuple[Point, float]] = []
    steps = (every if arguments.full else search)(seen, most, forms, prefetches, job.wanted_per_s)
    began_s = time.monotonic()
    try:
        skipped = _sweep(steps, seen, job, arguments.seconds, most)
    except DemoFailure as e:
        raise CommandError(e) from e
    measured = [(point, rate) for point, rate in seen if rate]
    if not measured:
        raise CommandError("stopped before the first point was measured")
    chosen = recommended(measured, job.wanted_per_s)
    if arguments.json:
        print_json(show.plain(measured, chosen, job, skipped, time.monotonic() - began_s))
    else:
        console().print(*show.shown(measured, chosen, job), sep="\n")
    try:
        if arguments.write is not None:
            arguments.write.write_text(show.settings(chosen, job, measured), encoding="utf-8")
        if arguments.plot is not None:
            show.plot(arguments.plot, rates_of(measured), chosen, job)
    except OSError as e:
        raise CommandError(f"{e.filename}: {e.strerror}") from e
    return OK


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuses files that cannot be written before minutes of measuring, not after."""
    if arguments.plot is not None and arguments.plot.suffix not in (".png", ".svg"):
        raise CommandError(f"--plot {arguments.plot}: must end with .png or .svg", USAGE)
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install 'prepserver[plot]'", USAGE)
    for option, path in (("--plot", arguments.plot), ("--write", arguments.write)):
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{option} {path}: there is no folder {path.parent}", USAGE)


def _sweep(
    steps: Iterator[Point], seen: list[tuple[Point, float]], job: Job, seconds: float, most: int
) -> dict[Point, str]:
    """Measures the points until they end or q is pressed; returns why some could not be measured."""
    skipped: dict[Point, str] = {}
    out = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with keys_at_once(), Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("starting a daemon (q stops)")
        try:
            with bench(job, seconds, most, lambda: pressed() == "q") as measured:
                for point in steps:
                    best = f"; best so far {max(rates_of(seen).values()):,.0f} samples/s" if seen else ""
                    bar.update(task, description=f"{len(seen) + 1}: {point}{best} (q stops)")
                    try:
                        rate = measured.images_per_s(point)
                    except NotMeasured as e:
                        if not seen:  # neither cached nor packed, so no point can be measured
                            raise CommandError(e) from e
                        skipped[point], rate = str(e), 0.0
                        out.print(f"not measured: {point}: {e}", markup=False, highlight=False)
                    seen.append((point, rate))
        except Stopped:
            pass
    return skipped


def _job(arguments: argparse.Namespace) -> Job:
    """What is tuned: a running or finished job, a function that makes a client, or a source and ops."""
    if (arguments.what is None) == (arguments.job is None):
        raise CommandError("name what to tune: SCRIPT.py:FUNCTION, a source with --ops, or --job NAME", USAGE)
    if arguments.job is not None:
        found, step_s = _of_log(arguments)
    else:
        made = _of_function(arguments.what)
        found, step_s = made if made is not None else _of_source(arguments), 0.0
    if arguments.step is not None:
        step_s = _timed(arguments.step, found)
    elif arguments.step_ms is not None:
        step_s = arguments.step_ms / 1e3
    batch_size = arguments.batch_size or found.batch_size
    plugins = tuple(dict.fromkeys((*found.plugins, *(arguments.plugins or ()))))
    return Job(found.source, found.ops, batch_size, found.views, found.shuffle, step_s, plugins)


def _of_log(arguments: argparse.Namespace) -> tuple[Job, float]:
    stay = open_log(arguments).begun()[-1].stays[-1]
    rows, attached = stay.rows, stay.attached
    source = source_from_wire(rows.source)
    pipeline = Pipeline.from_wire(rows.pipeline, source.columns)
    try:
        jobs = ask_status(arguments.runtime_dir)["jobs"]
    except AskError:
        jobs = []
    own_s = [job["own_s"] / job["batches"] for job in jobs if job["name"] == arguments.job and job["batches"] > 1]
    if not own_s and arguments.step_ms is None and arguments.step is None:
        raise CommandError(f"--job {arguments.job} does not run now, so its step is unknown: add --step-ms", USAGE)
    batch_size = attached.batch_size * attached.world_size
    found = Job(source, tuple(pipeline.ops), batch_size, pipeline.views, _ORDERS[rows.shuffle])
    return found, max(own_s, default=0.0)


def _of_function(what: str) -> Job | None:
    """The job of the client that the user's function returns; None if the text does not name a function."""
    if "(" in what or ":" not in what or "://" in what:
        return None
    from prepclient import PrepClient

    client = _function(what)()
    if not isinstance(client, PrepClient):
        raise CommandError(f"{what} returns {type(client).__name__}, not a PrepClient", USAGE)
    spec, plugins = client.spec, client.plugins
    client.close()
    pipeline, batch_size = spec.pipeline, spec.shape.batch_size * spec.shape.world_size
    return Job(spec.source, tuple(pipeline.ops), batch_size, pipeline.views, _ORDERS[spec.shuffle], 0.0, plugins)


def _function(what: str) -> Callable[..., Any]:
    """The function ``SCRIPT.py:FUNCTION`` or ``module:function``; imports its module."""
    place, _, name = what.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        raise CommandError(f"{what}: {place} does not exist", USAGE)
    sys.path.insert(0, str(Path(place).resolve().parent) if place.endswith(".py") else "")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[Path(place).stem] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except ImportError as e:
        raise CommandError(f"{what}: {e}", USAGE) from e
    found = getattr(module, name, None)
    if not callable(found):
        raise CommandError(f"{what}: {place} has no function {name}", USAGE)
    return found  # type: ignore[no-any-return]


def _of_source(arguments: argparse.Namespace) -> Job:
    if arguments.what.endswith(".py"):
        raise CommandError(
            f"{arguments.what}: name its function that returns a PrepClient, {arguments.what}:NAME", USAGE
        )
    if arguments.ops is None:
        raise CommandError("add --ops, such as --ops 'RandomResizedCrop(224), RandomHorizontalFlip()'", USAGE)
    source = source_from(arguments.what)
    if source is None:
        source = ImageFolder(str(Path(arguments.what).expanduser().absolute()))
    source = source.with_code(codes())
    return Job(source, tuple(ops_from(arguments.ops)), 256, plugins=tuple(arguments.plugins or ()))


def _timed(what: str, job: Job) -> float:
    """Seconds of the user's step on a batch of this job, in this process."""
    import torch

    from prepclient import PrepClient, PrepClientError

    step = _function(what)
    try:
        with PrepClient(
            job.source, job.ops, views=job.views, batch_size=job.batch_size, inline=True, plugins=job.plugins,
            on_error="skip",
        ) as train:  # fmt: skip
            batch = next(iter(train))
    except PrepClientError as e:
        raise CommandError(e) from e
    spent_s = math.inf
    for _ in range(_STEPS):  # the shortest counts, because the first steps compile
        began_s = time.monotonic()
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent_s = min(spent_s, time.monotonic() - began_s)
    return spent_s
