"""Findings of `prepserver doctor` about GPUs, the container, and storage."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pynvml

from prepserver.daemon.gpus import or_none

_PCI = Path("/sys/bus/pci/devices")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # a constant of the kernel: PROC_PID_INIT_INO
_SEEN_FILES = 20_000
_READ_BYTES = 1 << 20  # at most, of one file: workers read large files sample by sample


Severity = Literal["ok", "slow", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    # ``ok``; ``slow`` if prepserver works, but slower or less safely than it could; ``broken`` if it cannot work.
    severity: Severity
    text: str  # what was found
    fix: str = ""  # what to do about it; empty if nothing
    figures: dict[str, float] = field(default_factory=dict)  # what was measured, for machines


def gpus() -> Iterator[Finding]:
    """For each GPU, its PCIe link and the cores of its NUMA node."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        yield Finding("GPUs", "ok", f"none, or no driver ({e}): batches stay on the CPU")
        return
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            yield from _gpu(index, pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as e:
            fix = "see nvidia-smi and the kernel's log (Xid); resetting the GPU or a reboot usually helps"
            yield Finding(f"GPU {index}", "broken", f"it does not answer: {e}", fix)


def _gpu(index: int, handle: Any) -> Iterator[Finding]:
    name = pynvml.nvmlDeviceGetName(handle)
    width = or_none(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    widest = or_none(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    generation = or_none(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    bus = or_none(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)
    link = f", PCIe {generation or '?'} x{width} of x{widest}" if width and widest else ""
    if width and widest and width < widest:
        fix = "use another slot, or a riser of full width: this link slows copies to the GPU down"
        yield Finding(f"GPU {index}", "slow", f"{name}{link}", fix)
    else:
        yield Finding(f"GPU {index}", "ok", f"{name}{link}")
    if bus is not None:
        yield near(index, bus, os.sched_getaffinity(0))


def near(gpu: int, bus: str, mine: set[int], devices: Path = _PCI) -> Finding:
    """Whether a process on the cores `mine` is on the NUMA node of the GPU with the PCI address `bus` (from NVML)."""
    domain, _, rest = bus.lower().partition(":")
    place = devices / f"{domain[-4:]}:{rest}"
    name = f"GPU {gpu}, NUMA"
    try:
        node, cores = int((place / "numa_node").read_text()), (place / "local_cpulist").read_text().strip()
    except (OSError, ValueError) as e:
        return Finding(name, "ok", f"the kernel does not report its node ({e})")
    if node < 0 or mine & _cores_of(cores):
        where = "the machine has one node" if node < 0 else f"node {node}, with cores {cores}"
        return Finding(name, "ok", f"{where}: rows are copied from local memory")
    fix = f"start the daemon and the training script with numactl --cpunodebind={node} --membind={node}"
    return Finding(name, "slow", f"on node {node} (cores {cores}), and this process may use none of its cores", fix)


def _cores_of(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def container(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Finding:
    """The container that this process runs in, and which of its flags matter."""
    marks = {
        "Kubernetes": "KUBERNETES_SERVICE_HOST" in environment,
        "Docker": (root / ".dockerenv").exists(),
        "Podman": (root / "run/.containerenv").exists(),
        "Apptainer": (root / ".singularity.d").exists() or "APPTAINER_CONTAINER" in environment,
    }
    kind = next((name for name, is_there in marks.items() if is_there), "")
    try:
        is_alone = os.readlink(root / "proc/self/ns/pid") != _FIRST_PID_NAMESPACE
    except OSError:
        is_alone = False
    if not kind and not is_alone:
        return Finding("container", "ok", "none")
    text = f"{kind or 'a PID namespace'}; neither --ipc=host nor --shm-size is needed"
    if not is_alone:
        return Finding("container", "ok", text)
    text += ". In its own PID namespace, prepserver cannot tell which job uses a GPU, so no verdict sees an idle GPU"
    return Finding("container", "ok", text, "for that verdict, docker run --pid=host, or hostPID: true in the pod")


def storage(folder: str, seconds: float, threads: int, wanted_per_s: float) -> Finding:
    """Measures how many files/s `threads` threads read below a folder, bypassing the page cache where possible.

    `wanted_per_s` is the rate at which the workers can decode.
    """
    files = list(itertools.islice(_files(folder), _SEEN_FILES))
    random.Random(0).shuffle(files)
    turn = itertools.cycle(files)
    began_s = time.monotonic()
    end_s = began_s + seconds

    def reads(_thread: int) -> tuple[int, int]:
        count = nbytes = 0
        for path in turn:
            if (got := _read(path)) is not None:
                count, nbytes = count + 1, nbytes + got
            if time.monotonic() >= end_s:
                break
        return count, nbytes

    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(reads, range(threads)))
    spent_s = time.monotonic() - began_s
    per_s, bytes_per_s = (sum(each) / spent_s for each in zip(*counts, strict=True))
    if not per_s:
        return Finding("storage", "broken", f"no file below {folder} can be read", "name the folder of a dataset")
    text = (
        f"{folder}: {per_s:,.0f} files/s and {bytes_per_s / 1e6:,.0f} MB/s, {threads} at a time, "
        f"{bytes_per_s / per_s / 1e3:,.0f} kB each"
    )
    figures = {"files_per_s": round(per_s, 1), "bytes_per_s": round(bytes_per_s)}
    if per_s >= wanted_per_s:
        return Finding("storage", "ok", f"{text}: more than the workers can decode", figures=figures)
    fix = f'`prepserver pack {folder} OUT` for a few large files, or cache="encoded" for all epochs after the first'
    text += f": fewer than the {wanted_per_s:,.0f} images/s that the workers can decode"
    return Finding("storage", "slow", text, fix, figures)


def _files(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (f"{place}/{name}" for name in names)


def _read(path: str) -> int | None:
    """Reads a file, or a part of a large one, from storage if possible; returns the bytes, None if it cannot."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        at = random.randrange(max(1, size - _READ_BYTES))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return len(os.pread(fd, _READ_BYTES, at if size > _READ_BYTES else 0))
    except OSError:  # a pipe
        return None
    finally:
        os.close(fd)
