"""A client with a device and a real daemon, from end to end: on CUDA, and without it on the fake device."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from prepclient import Joining, PrepClient, SyntheticImages
from prepclient.pinning import HostPin, open_driver
from prepserver.pipeline.sources import ImageFolder
from tests.gpu.segment import Segment
from tests.support import leaks
from tests.support.client_process import rows_of
from tests.support.clients import OPS, ClientProcess, Rows, inline_rows
from tests.support.device_client import DeviceClient
from tests.support.fake_device import RunningDevice
from tests.support.server import Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

SOURCE = SyntheticImages(600, size=(48, 64))
SPEC: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 5}
KINDS = pytest.mark.parametrize("kind", ["fake", "cuda"])


def client(kind: str, server: Server, source: Any = SOURCE, **options: Any) -> PrepClient:
    options = {**SPEC, "fields": "dict", "runtime_dir": server.runtime_dir, "prefetch": 60, **options}
    if kind == "fake":
        return DeviceClient(source, OPS, fake=RunningDevice(), **options)
    return PrepClient(source, OPS, device="cuda", **options)


def rows(of: PrepClient, batches: Iterator[Any], count: int | None = None) -> Rows:
    """Rows of the next `count` batches, or of all that are left, as they are on the device."""
    found: Rows = []
    for number, batch in enumerate(batches, 1):
        if isinstance(of, DeviceClient):
            of.fake.finish_all()
        found += rows_of(batch)
        if number == count:
            break
    return found


@KINDS
@pytest.mark.parametrize("lend", [False, True])
def test_a_ring_that_wraps_many_times_brings_the_daemons_rows(kind: str, lend: bool, server: Server) -> None:
    with client(kind, server, zero_copy=lend) as job:
        got = [row for _ in range(3) for row in rows(job, iter(job))]
    assert got == inline_rows(SOURCE, epochs=3, **SPEC)


@KINDS
def test_a_job_that_moves_to_another_ring_loses_nothing(kind: str, server: Server) -> None:
    expected = inline_rows(SOURCE, **SPEC)
    with (
        client(kind, server, job="slow", joining=Joining(lag="detach")) as slow,
        client(kind, server, job="quick") as quick,
    ):
        of_slow = iter(slow)
        got = rows(slow, of_slow, 1)
        assert rows(quick, iter(quick)) == expected
        assert len(server.status()["streams"]) == 2
        assert got + rows(slow, of_slow) == expected


@KINDS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_is_killed_leaves_its_rows_to_the_others(
    kind: str, number: signal.Signals, server: Server, client_process: Callable[..., ClientProcess]
) -> None:
    killed = client_process(server, SOURCE, device=kind, prefetch=60, joining=Joining(), **SPEC)
    killed.read(3)
    with client(kind, server) as job:
        batches = iter(job)
        before = rows(job, batches, 2)
        killed.kill(number)
        killed.end()
        assert len(before + rows(job, batches)) == 600


@KINDS
def test_a_killed_and_restarted_daemon_goes_on_with_equal_rows(kind: str, server: Server) -> None:
    with client(kind, server) as job:
        batches = iter(job)
        got = rows(job, batches, 4)
        server.kill()
        server.start()
        assert got + rows(job, batches) == inline_rows(SOURCE, **SPEC)


@KINDS
def test_a_mask_tells_replaced_rows_on_the_device(kind: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for index in range(30):
        data = b"no image at all" if index in (3, 17) else ppm(index)
        (tmp_path / "cats" / f"{index:04d}.ppm").write_bytes(data)
    with client(kind, server, ImageFolder(str(tmp_path)), on_error="mask", shuffle=False, batch_size=10) as job:
        masks = []
        for batch in job:
            if isinstance(job, DeviceClient):
                job.fake.finish_all()
            assert batch["valid"].device == batch["label"].device
            masks += batch["valid"].tolist()
    assert [index for index, valid in enumerate(masks) if not valid] == [3, 17]


def ppm(seed: int) -> bytes:
    """An image that needs no encoder."""
    pixels = torch.arange(40 * 50 * 3, device="cpu").mul(seed + 1).to(torch.uint8)
    return b"P6 50 40 255\n" + bytes(pixels.numpy())


@KINDS
@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_forked_child_may_close_and_the_parent_goes_on(kind: str, end: str, server: Server) -> None:
    with client(kind, server) as job:
        batches = iter(job)
        got = rows(job, batches, 3)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if end == "close":
                    job.close()
                del job, batches
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert got + rows(job, batches) == inline_rows(SOURCE, **SPEC)


@KINDS
@pytest.mark.parametrize("close", [True, False])
def test_forty_attachments_take_no_more_memory_than_two(kind: str, close: bool, server: Server) -> None:
    job = client(kind, server)
    taken = []
    for _ in range(40):
        rows(job, iter(job), 2)
        state = job.state_dict()
        if isinstance(job, DeviceClient):
            taken.append(job.fake.buffers - job.fake.retired)
        else:
            torch.cuda.synchronize()
            taken.append(torch.cuda.memory_reserved())
        if close:
            job.close()
        job.load_state_dict(state)
        assert len(leaks.rings(os.getpid())) == 0
    job.close()
    assert max(taken[2:]) <= max(taken[:2])
    assert len(leaks.rings(os.getpid())) == 0


def test_a_graph_is_captured_while_rings_are_locked_and_unlocked(device: torch.device) -> None:
    """Captured in the strictest mode."""
    cuda: Any = torch.cuda
    done = threading.Event()
    errors: list[BaseException] = []

    def lock() -> None:
        try:
            while not done.is_set():
                with Segment.create(64 << 20) as segment:
                    pin = HostPin(segment.address, segment.nbytes, open_driver(device), keep=segment)
                    pin.start()
                    assert pin.wait(), pin.reason
                    pin.close()
        except BaseException as e:  # noqa: BLE001 - told below
            errors.append(e)

    values = torch.zeros(1 << 20, device=device)
    locking = threading.Thread(target=lock)
    locking.start()
    try:
        for _ in range(50):
            graph, side = cuda.CUDAGraph(), cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                graph.capture_begin(capture_error_mode="global")
                for _ in range(200):
                    values += 1
                graph.capture_end()
            cuda.current_stream().wait_stream(side)
            graph.replay()
    finally:
        done.set()
        locking.join(60)
    torch.cuda.synchronize()
    assert errors == []
    assert float(values[0]) == 50 * 200
