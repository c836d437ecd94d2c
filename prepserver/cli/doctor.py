"""``prepserver doctor``: checks what on this machine slows prepserver down, and says how to fix it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from prepserver import __version__
from prepserver.cli import exits
from prepserver.cli.ask import AskError, ShutPlace, ask_status
from prepserver.cli.hardware import Finding, Severity, container, gpus, storage
from prepserver.cli.network import cluster
from prepserver.cli.table import console, print_json
from prepserver.config import auto_workers, format_bytes, usable_cores
from prepserver.daemon.descriptors import DescriptorsShort, clients_allowed
from prepserver.memory.budget import machine_bytes, machine_free_bytes
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import create_segment
from prepserver.telemetry.logs import counted
from prepserver.worker import sandbox

_STYLES = {"ok": "green", "slow": "bold dark_orange3", "broken": "bold red"}
_TRIAL_BYTES = 16 << 20
_LITTLE_BYTES = 2 << 30
_SIZE, _ROW = (375, 500), 224


def doctor(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    found = list(findings(arguments))
    if arguments.json:
        print_json({"findings": [asdict(each) for each in found]})
    else:
        out = console()
        for each in found:
            line = Text().append(f"{each.severity:<7}", _STYLES[each.severity]).append(f"{each.name}: ", "bold")
            out.print(line.append(each.text))
            if each.fix:
                out.print(Text(f"       fix: {each.fix}"))
    return exits.FAILED if any(each.severity == "broken" for each in found) else exits.OK


def findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Runs all checks, one after the other."""
    yield _sandbox()  # ORDER: first, because it forks, and what follows may start threads
    for look in (_memory, _memfd, _cores, _files, _kernels, container):
        yield look()
    yield _daemon(arguments.runtime_dir)
    yield from gpus()
    speed = _speed(arguments.seconds, arguments.job_rate)
    yield speed
    if arguments.engine == "ray":
        yield from cluster(arguments.address, arguments.seconds, _ROW, speed.figures["images_per_s_per_core"])
    if arguments.storage is not None:
        workers = auto_workers()
        yield storage(arguments.storage, arguments.seconds, workers, speed.figures["predicted_images_per_s"])


def _sandbox() -> Finding:
    parts = sandbox.find_out()
    if parts.missing:
        fix = (
            "use Linux 5.13 or newer with landlock in its lsm= list; in a container, a seccomp profile that allows "
            'landlock and seccomp. With `sandbox = "on"` the daemon refuses to start without them'
        )
        return Finding("sandbox of the workers", "slow", f"only {parts}; missing: {parts.missing}", fix)
    return Finding("sandbox of the workers", "ok", str(parts))


def _memory() -> Finding:
    whose, (free, limit) = machine_bytes()[1], machine_free_bytes()
    text = f"{format_bytes(free)} free; {whose}. The rings get half of what is free"
    if free >= _LITTLE_BYTES:
        return Finding("memory", "ok", text)
    severity: Severity = "slow" if free >= _TRIAL_BYTES else "broken"
    return Finding("memory", severity, text, f"stop other programs, or raise the limit: {limit}")


def _memfd() -> Finding:
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    text = (
        f"sealed memfds work; the size of /dev/shm and the limit on locked memory (ulimit -l: "
        f"{'none' if locked == resource.RLIM_INFINITY else format_bytes(locked)}) do not matter"
    )
    try:
        fd = create_segment("prepserver-doctor", _TRIAL_BYTES)
        with contextlib.closing(os.fdopen(fd)):
            MemoryMap(fd, 0, _TRIAL_BYTES, writable=True).populate()
    except OSError as e:
        fix = "use a kernel, or a seccomp profile of the container, that allows memfd_create and its seals"
        if e.errno == errno.EFBIG:
            fix = "raise the limit on the size of files (ulimit -f; systemd: LimitFSIZE=)"
        return Finding("shared memory", "broken", f"cannot allocate {_TRIAL_BYTES >> 20} MiB: {e}", fix)
    return Finding("shared memory", "ok", text)


def _cores() -> Finding:
    usable, all_cores = usable_cores(), os.cpu_count() or 1
    text = f"{usable:g} of {all_cores} are usable; --workers auto starts with {counted(auto_workers(), 'worker')}"
    if usable < all_cores:
        fix = "docker: --cpus and --cpuset-cpus; systemd: CPUQuota=, AllowedCPUs=; Slurm: --cpus-per-task"
        return Finding("cores", "slow", text, f"to allow more: {fix}")
    if usable < 2:
        return Finding("cores", "slow", text, "use a machine with more cores: workers and training share this one")
    return Finding("cores", "ok", text)


def _files() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        clients = clients_allowed(limit, auto_workers())
    except DescriptorsShort as e:
        return Finding("open files", "broken", str(e), "ulimit -Hn 65536, or LimitNOFILE=65536 in the unit")
    return Finding("open files", "ok", f"the limit allows {clients} clients at once")


def _kernels() -> Finding:
    from prepserver.transform import native  # slow to import

    path, why = native.path()
    if path == "native":
        return Finding("compiled kernels", "ok", why)
    return Finding("compiled kernels", "slow", f"off, so rows take about twice as long: {why}", _kernels_fix(why))


def _kernels_fix(why: str) -> str:
    if "PREPSERVER_NATIVE" in why:
        return "unset PREPSERVER_NATIVE"
    if "Pillow" in why:
        return "pip install --force-reinstall pillow"
    return "install a C compiler, then prepserver again; in a checkout, run python hatch_build.py"


def _daemon(runtime_dir: str | None) -> Finding:
    try:
        found = ask_status(runtime_dir)
    except AskError as e:
        if e.code == exits.NO_DAEMON:
            start = "start one with `prepserver start -d`, or pass workers=N to PrepClient"
            return Finding("daemon", "ok", f"{e}; {start}")
        if isinstance(e, ShutPlace):
            fix = "PrepClient(workers=N) works without it; if no daemon runs there, its owner can remove the folder"
            return Finding("daemon", "slow", str(e), fix)
        return Finding("daemon", "broken", str(e), "restart it, or ask its operator for access")
    has = (counted(len(found["workers"]), "worker"), counted(len(found["jobs"]), "job"))
    text = f"runs in {found['runtime_dir']}: {', '.join(has)}"
    if found["version"] != __version__:
        return Finding("daemon", "slow", f"{text}, version {found['version']}, not {__version__}", "restart it")
    return Finding("daemon", "ok", text)


def _speed(seconds: float, job_per_s: float) -> Finding:
    per_s, workers = measured_per_s(seconds), auto_workers()
    whole_per_s = per_s * workers
    jobs = whole_per_s / job_per_s
    text = (
        f"{per_s:,.0f} images/s on one core ({_SIZE[0]}x{_SIZE[1]} photos, random crops of {_ROW}), so up to "
        f"{whole_per_s:,.0f} images/s with {counted(workers, 'worker')}. That feeds {jobs:.1f} jobs at "
        f"{job_per_s:,.0f} images/s each (--job-rate); jobs that share a pass count once"
    )
    figures = {
        "images_per_s_per_core": round(per_s, 1), "predicted_images_per_s": round(whole_per_s, 1),
        "jobs_fed": round(jobs, 2),
    }  # fmt: skip
    if jobs >= 1:
        return Finding("decoding", "ok", text, figures=figures)
    fix = 'try `prepserver pack --max-side PIXELS`, cache="decoded" or more cores; `prepserver tune` measures them'
    return Finding("decoding", "slow", text, fix, figures)


def measured_per_s(seconds: float) -> float:
    """Rows that a worker makes per CPU second from synthetic photos in memory, measured for `seconds`."""
    import numpy as np
    import simplejpeg

    from prepserver.pipeline.ops import RandomHorizontalFlip, RandomResizedCrop
    from prepserver.pipeline.pipeline import Pipeline
    from prepserver.pipeline.sources import SyntheticImages
    from prepserver.source.scenes import scene
    from prepserver.transform import SampleKey, make_rows, row_makers

    pipeline = Pipeline.from_ops([RandomResizedCrop(_ROW), RandomHorizontalFlip()], 1, SyntheticImages(1).columns)
    (maker,) = row_makers(pipeline)
    (field,) = maker.fields
    row = np.zeros(field.shape, field.dtype)
    photos = [simplejpeg.encode_jpeg(scene(0, *_SIZE, number), quality=95) for number in range(4)]
    end_s, made, cpu_s = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < end_s or made < len(photos):
        began_s = time.thread_time()
        make_rows({field.column: photos[made % len(photos)]}, SampleKey(0, 0, made), [(maker, [row])])
        made, cpu_s = made + 1, cpu_s + time.thread_time() - began_s
    return made / cpu_s
