"""What a GPU does with page-locked shared memory, and with the client's code: checks for the case `gpu`.

Each runs in a process of its own: ``python -m bench.harness.gpu_checks check NUMBER`` prints its facts as a line of
JSON. In the order of `CHECKS`:

1. a writable memfd, page-locked: does the driver accept it, at what rate does it copy, compared with torch's pinned
   memory, does the copy overlap a kernel, may two processes lock the same pages and copy at once;
2. a batch that is copied while a model trains: what of the copy is hidden behind the step, what it costs the step;
3. a read-only mapping with the driver's read-only flag;
4. seconds per GiB to lock: ordinary pages touched and untouched, huge pages;
5. does a low ``ulimit -l`` matter;
6. a process is killed in mid-copy: how soon are its pages free, are they right when they are used again;
7. is NVML there (run this inside the daemon's unit to know about the unit);
8. a MIG slice: the rate of 1 again, with the slice's name;
9. the copier to the device: images/s and host time per batch, plain and finished;
10. ops on batches: RandAugment, ColorJitter, and MixUp or CutMix as one kernel and op by op, with the normalization, as
    a share of a training step of ResNet-50 (bf16, channels_last, batch 256), and how long their first use takes.

The module is long because every check is here.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import mmap
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from bench.harness.resnet import resnet50

try:
    from prepclient import ColorJitter, CutMix, MixUp, RandAugment, RandomChoice
    from prepclient.device import DeviceCopier
    from prepclient.engine import cuda_device
    from prepclient.finish import Finish, Finisher, drawing_of
    from prepclient.pinning import PORTABLE, HostPin, LibCuda, open_driver
    from prepclient.rowlook import RowLook
except ImportError as error:
    sys.exit(f"{error}. On a machine that has only torch: python tests/gpu/machine.py")

Facts: TypeAlias = dict[str, Any]

READ_ONLY = 8  # CU_MEMHOSTREGISTER_READ_ONLY
READ_ONLY_SUPPORTED = 113  # CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
MIB, GIB = 1 << 20, 1 << 30
BATCH, SHAPE = 256, (224, 224, 3)
PIXELS = 224 * 224 * 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

cuda: Any = torch.cuda  # typed in part only


class Segment:
    """A memfd and a writable shared mapping of it; `flags` are more flags of memfd_create."""

    def __init__(self, nbytes: int, *, fd: int | None = None, touch: bool = True, flags: int = 0) -> None:
        self.fd = os.memfd_create("prepserver-bench", os.MFD_CLOEXEC | flags) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, nbytes)
        self.nbytes = nbytes
        self.bytes = torch.frombuffer(mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED), dtype=torch.uint8)
        self.address = self.bytes.data_ptr()
        if touch and fd is None:
            self.bytes.fill_(1)

    def __del__(self) -> None:
        os.close(self.fd)


def driver() -> LibCuda:
    return LibCuda(cuda.current_device())


def locked(segment: Segment) -> HostPin:
    pin = HostPin(segment.address, segment.nbytes, open_driver(cuda_device("cuda")), keep=segment)
    pin.start()
    if not pin.wait():
        raise RuntimeError(str(pin.reason))
    return pin


def gb_per_s(source: torch.Tensor, *, times: int = 10, whole: bool = False) -> float:
    """Median rate of asynchronous copies of `source` to the GPU, by events around each.

    With `whole`, the rate of all together: of two processes in turn on the GPU, a median would leave out the turns of
    the other one.
    """
    target = torch.empty_like(source, device="cuda")
    marks = [cuda.Event(enable_timing=True) for _ in range(times + 1)]
    for _ in range(3):  # an idle link may run at a lower speed at first
        target.copy_(source, non_blocking=True)
    marks[0].record()
    for mark in marks[1:]:
        target.copy_(source, non_blocking=True)
        mark.record()
    cuda.synchronize()
    each_ms = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    ms: float = statistics.fmean(each_ms) if whole else statistics.median(each_ms)
    return round(source.numel() * source.element_size() / ms / 1e6, 2)


def child(task: str, segment: Segment) -> subprocess.Popen[str]:
    """Another process with the same memory; it runs `run_child`."""
    command = [sys.executable, "-m", "bench.harness.gpu_checks", task, str(segment.fd), str(segment.nbytes)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    return subprocess.Popen(
        command, pass_fds=[segment.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    print("go", file=process.stdin, flush=True)


def run_child(task: str, fd: int, nbytes: int) -> None:
    """The other process: `rate` prints its rate, `memlock` does so under ulimit -l 64, `copy` copies for ever."""
    if task == "memlock":
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    segment = Segment(nbytes, fd=fd)
    pin = locked(segment)
    if task != "copy":
        target = torch.empty_like(segment.bytes, device="cuda")  # makes the context before anything is measured
        target.copy_(segment.bytes)
        print("locked", flush=True)
        sys.stdin.readline()
        print(gb_per_s(segment.bytes, times=100, whole=True), flush=True)
        sys.stdin.readline()
        pin.close()
        return
    target = torch.empty_like(segment.bytes, device="cuda")
    while True:
        for _ in range(64):
            target.copy_(segment.bytes, non_blocking=True)
        print("copying", flush=True)


def check_memfd() -> Facts:
    facts: Facts = {}
    for size in (BATCH * PIXELS, 256 * MIB):
        segment, name = Segment(size), f"{round(size / MIB)}_MiB"
        facts[f"pageable_{name}_gb_per_s"] = gb_per_s(segment.bytes)
        pin = locked(segment)
        facts[f"is_pinned_{name}"] = segment.bytes.is_pinned()
        pinned = torch.ones(size, dtype=torch.uint8).pin_memory()
        rates = [(gb_per_s(segment.bytes), gb_per_s(pinned)) for _ in range(7)]
        facts[f"locked_{name}_gb_per_s"], facts[f"torch_pinned_{name}_gb_per_s"] = map(
            statistics.median, zip(*rates, strict=True)
        )
        facts[f"locked_{name}_by_torch_pinned"] = round(statistics.median(ours / torchs for ours, torchs in rates), 3)
        pin.close()
    segment = Segment(256 * MIB)
    pin = locked(segment)
    facts |= overlap(segment)
    with child("rate", segment) as other:
        if line_of(other) != "locked":
            raise RuntimeError("the other process could not lock the pages")
        alone = gb_per_s(segment.bytes, times=100, whole=True)
        tell(other)
        both = [gb_per_s(segment.bytes, times=100, whole=True), float(line_of(other))]
        tell(other)
    facts |= {"one_process_gb_per_s": alone, "two_processes_gb_per_s": both}
    facts["two_by_one"] = round(sum(both) / alone, 3)
    facts["still_pinned_after_the_other"] = segment.bytes.is_pinned()
    pin.close()
    return facts


def overlap(segment: Segment) -> Facts:
    """A kernel alone, a copy alone, both on two streams: they overlap if both take about as long as the longer one."""
    target, side = torch.empty_like(segment.bytes, device="cuda"), cuda.Stream()

    def kernel() -> None:
        cuda._sleep(20_000_000)

    def copy() -> None:
        with cuda.stream(side):
            target.copy_(segment.bytes, non_blocking=True)

    def both() -> None:
        kernel()
        copy()

    for _ in range(30):  # the kernel counts cycles, and an idle GPU has a lower clock
        took_ms(both)
    works = (("kernel_ms", kernel), ("copy_ms", copy), ("both_ms", both))
    return {name: round(statistics.median(took_ms(work) for _ in range(5)), 3) for name, work in works}


def took_ms(work: Callable[[], None]) -> float:
    """Until the GPU has done it."""
    cuda.synchronize()
    start = time.monotonic()
    work()
    cuda.synchronize()
    return (time.monotonic() - start) * 1e3


def check_step() -> Facts:
    segment, side = Segment(BATCH * PIXELS), cuda.Stream()
    pin, target = locked(segment), torch.empty_like(segment.bytes, device="cuda")
    rows = torch.randint(0, 256, (BATCH, *SHAPE), dtype=torch.uint8, device="cuda")
    step = training_step(rows, torch.arange(BATCH, device="cuda"), BATCH)

    def copy(times: int) -> None:
        with cuda.stream(side):
            for _ in range(times):
                target.copy_(segment.bytes, non_blocking=True)

    def both(times: int) -> None:
        copy(times)
        step()

    for _ in range(10):
        took_ms(step)
        one_ms = took_ms(lambda: copy(1))
    many = max(1, round(took_ms(step) / one_ms / 2))  # half of the step's time: one copy is lost in the noise
    works = (step, lambda: both(1), lambda: copy(many), lambda: both(many))
    alone_ms, one_beside_ms, copies_ms, beside_ms = (
        statistics.median(times) for times in zip(*([took_ms(work) for work in works] for _ in range(20)), strict=True)
    )
    pin.close()
    return {
        "step_ms": round(alone_ms, 3), "step_with_a_copy_ms": round(one_beside_ms, 3), "copies": many,
        "copies_ms": round(copies_ms, 3), "step_with_copies_ms": round(beside_ms, 3),
        "step_with_a_copy_by_step": round(one_beside_ms / alone_ms, 4),
        "hidden_percent": round(100 * (alone_ms + copies_ms - beside_ms) / copies_ms, 1),
    }  # fmt: skip


def check_read_only() -> Facts:
    segment = Segment(16 * MIB)
    view = mmap.mmap(segment.fd, segment.nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of memory that it must not write
        address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
    lib = driver()
    facts: Facts = {"attribute_113": attribute(READ_ONLY_SUPPORTED)}
    for name, flags in (("portable", PORTABLE), ("portable_read_only", PORTABLE | READ_ONLY)):
        code = lib.register(address, segment.nbytes, flags)
        facts[name] = "locked" if code == 0 else lib.describe(code)
        if code == 0:
            lib.unregister(address)
    return facts


def attribute(which: int) -> int:
    library, value, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    code = library.cuDeviceGet(ctypes.byref(device), cuda.current_device())
    code = code or library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    if code != 0:
        raise RuntimeError(f"cuDeviceGetAttribute({which}): code {code}")
    return value.value


def check_seconds_per_gb() -> Facts:
    facts: Facts = {}
    kinds = (("touched_4k", True, 0), ("untouched_4k", False, 0), ("huge_2m", True, os.MFD_HUGETLB))
    for name, touch, flags in kinds:
        try:
            segment = Segment(GIB, touch=touch, flags=flags)
        except (OSError, ValueError) as error:
            facts[name] = f"no such memory here: {error} (huge pages: vm.nr_hugepages >= 512)"
            continue
        start = time.monotonic()
        pin = locked(segment)
        facts[f"{name}_s_per_gib"] = round(time.monotonic() - start, 4)
        facts[f"{name}_gb_per_s"] = gb_per_s(segment.bytes)
        start = time.monotonic()
        pin.close()
        facts[f"{name}_unlock_s_per_gib"] = round(time.monotonic() - start, 4)
    return facts


def check_memlock() -> Facts:
    segment = Segment(64 * MIB)
    with child("memlock", segment) as other:
        said = ""
        if line_of(other) == "locked":
            tell(other)
            said = line_of(other)
            tell(other)
    return {"as_root": os.geteuid() == 0, "under_ulimit_64k_gb_per_s": float(said) if said else "refused"}


def check_killed() -> Facts:
    segment = Segment(256 * MIB)
    with child("copy", segment) as other:
        if line_of(other) != "copying":
            raise RuntimeError("the other process did not get to copy")
        start = time.monotonic()
        other.kill()
        other.wait(60)
        facts: Facts = {"kill_to_reaped_ms": round((time.monotonic() - start) * 1e3, 2)}
    segment.bytes.fill_(77)
    pin = locked(segment)
    facts["right_when_used_again"] = bool((segment.bytes.to("cuda", non_blocking=True) == 77).all())
    facts["kept_what_was_written"] = bool((segment.bytes == 77).all())
    pin.close()
    return facts


def nvml() -> tuple[Any, Any]:
    """The library, initialised, and the first device."""
    import pynvml  # missing on some machines: then only this check fails

    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML: {error}") from error


def check_nvml() -> Facts:
    library, handle = nvml()
    used = library.nvmlDeviceGetMemoryInfo(handle).used
    facts = {"driver": str(library.nvmlSystemGetDriverVersion()), "memory_used_mib": used // MIB}
    return facts | {
        "inside_a_systemd_unit": "INVOCATION_ID" in os.environ,
        "device_nodes": sorted(str(path) for path in Path("/dev").glob("nvidia*")),
    }


def check_mig() -> Facts:
    name = cuda.get_device_name()
    if "MIG" not in name:
        return {"this_is_a_slice": False, "device": name}
    segment = Segment(256 * MIB)
    pin = locked(segment)
    rate = gb_per_s(segment.bytes)
    pin.close()
    return {"this_is_a_slice": True, "device": name, "locked_256_MiB_gb_per_s": rate}


def check_copier() -> Facts:
    look = RowLook(SHAPE)
    segment = Segment(8 * BATCH * look.nbytes)
    images = segment.bytes.view(8 * BATCH, *SHAPE)
    facts: Facts = {"batch": BATCH, "shape": list(SHAPE)}
    finished = Finish(normalize=(MEAN, STD), dtype=torch.float16)
    pin: HostPin | None = None
    for memory in ("pageable", "locked"):
        pin = locked(segment) if memory == "locked" else None
        for name, finish, lend in (
            ("lent", Finish(), True),
            ("plain", Finish(), False),
            ("normalized_half", finished, False),
        ):
            copier = DeviceCopier(
                "cuda",
                [look],
                BATCH,
                finish=finish,
                zero_copy=lend,
                small={"label": torch.int64, "index": torch.int64},
            )
            facts |= {f"{memory}_{name}_{key}": value for key, value in drive(copier, images).items()}
            copier.close()
    if pin is not None:
        pin.close()
    return facts


def drive(copier: DeviceCopier, images: torch.Tensor, batches: int = 200) -> Facts:
    """A consumer that only takes batches: the rate that the copier can sustain, and the host's time for a batch."""
    labels = {"label": [torch.arange(BATCH)], "index": [torch.arange(BATCH)]}
    host: list[float] = []
    submitted = 0
    for step in range(-10, batches):
        if step == 0:
            cuda.synchronize()
            start = time.monotonic()
        before = time.thread_time()
        copier.delivery.poll()
        copier.delivery.ask()
        while copier.delivery.room:
            begin = submitted % 8 * BATCH
            copier.submit(submitted, [[images[begin : begin + BATCH]]], labels)
            submitted += 1
        copier.take()
        host.append(time.thread_time() - before)
    cuda.synchronize()
    rate = batches * BATCH / (time.monotonic() - start)
    return {"images_per_s": round(rate), "host_cpu_us_per_batch": round(statistics.median(host) * 1e6, 1)}


def check_device_ops() -> Facts:
    look, classes = RowLook(SHAPE), 1000
    device = cuda_device("cuda")
    rows = torch.randint(0, 256, (BATCH, *SHAPE), dtype=torch.uint8, device=device)
    labels = torch.arange(BATCH) % classes
    facts: Facts = {"batch": BATCH, "step_ms": ms_per_call(training_step(rows, labels.to(device), classes))}
    ops = [RandomChoice([MixUp(classes), CutMix(classes)])]
    for name, finish in (
        ("normalized", Finish((MEAN, STD), torch.bfloat16)),
        ("mixed_fused", Finish((MEAN, STD), torch.bfloat16, ops=ops)),
        ("mixed_op_by_op", Finish((MEAN, STD), torch.bfloat16, ops=ops, compile=False)),
        ("augmented", Finish((MEAN, STD), torch.bfloat16, ops=[RandAugment()])),
        ("jittered_fused", Finish((MEAN, STD), torch.bfloat16, ops=[ColorJitter(0.4, 0.4, 0.4, 0.1), *ops])),
    ):
        finisher, drawing = Finisher(finish, look, device), drawing_of(0, [look], finish)
        drawn: tuple[torch.Tensor, ...] = ()
        if drawing is not None:
            small = {"label": labels, "index": torch.arange(BATCH)}
            took_s = []
            for _ in range(20):  # the first one also makes what later ones have
                start = time.thread_time()
                known = drawing(0, 1 << 20, small)
                took_s.append(time.thread_time() - start)
            drawn = known.to(device), known
            facts[f"{name}_host_us"] = round(statistics.median(took_s) * 1e6)
        out = finisher.empty(BATCH)
        began_s = time.monotonic()  # what is fused is compiled first, for which a job's first batch waits
        finisher.fill(out, [rows], *drawn)
        cuda.synchronize()
        facts[f"{name}_first_s"] = round(time.monotonic() - began_s, 2)
        facts[f"{name}_ms"] = ms_per_call(lambda f=finisher, o=out, d=drawn: f.fill(o, [rows], *d))  # type: ignore[misc]
        facts[f"{name}_share_of_step_percent"] = round(100 * facts[f"{name}_ms"] / facts["step_ms"], 2)
    return facts


def training_step(rows: torch.Tensor, labels: torch.Tensor, classes: int) -> Callable[[], None]:
    model: Any = resnet50(classes).to(rows.device)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = rows.permute(0, 3, 1, 2).to(torch.bfloat16) / 255

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def ms_per_call(work: Callable[[], None], times: int = 30) -> float:
    """Median time on the GPU, by events around each call; the first calls, which may compile, do not count."""
    for _ in range(5):
        work()
    marks = [cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    cuda.synchronize()
    ms: float = statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
    return round(ms, 4)


CHECKS: list[tuple[str, Callable[[], Facts]]] = [
    ("memfd, locked", check_memfd),
    ("copies beside a training step", check_step),
    ("read-only mapping", check_read_only),
    ("seconds per GiB to lock", check_seconds_per_gb),
    ("ulimit -l 64", check_memlock),
    ("killed in mid-copy", check_killed),
    ("NVML", check_nvml),
    ("MIG", check_mig),
    ("device copier", check_copier),
    ("ops on batches", check_device_ops),
]


def device() -> Facts:
    properties = cuda.get_device_properties(cuda.current_device())
    return {
        "gpu": properties.name, "gpus": cuda.device_count(), "gpu_memory_mib": properties.total_memory // MIB,
        "torch": torch.__version__, "cuda": torch.version.cuda,
    }  # fmt: skip


def run_check(number: int) -> Facts:
    """One check, in this process, with what the client logs meanwhile, such as that nothing could be fused."""
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("prepclient").addHandler(handler)
    try:
        facts = CHECKS[number - 1][1]()
    except Exception as error:  # noqa: BLE001 - whatever it is: the report has it, and the next check runs
        facts = {"failed": f"{type(error).__name__}: {error}"}
    return facts | ({"logged": logged} if logged else {})


if __name__ == "__main__" and sys.argv[1] == "check":
    print(json.dumps(run_check(int(sys.argv[2]))), flush=True)
elif __name__ == "__main__":
    run_child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
