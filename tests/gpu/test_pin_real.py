"""Page-locking of a memfd on a real driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prepclient.pinning import HostPin, LibCuda, PinningWarning, open_driver
from tests.gpu.segment import Segment


def pinned(segment: Segment, device: torch.device) -> HostPin:
    pin = HostPin(segment.address, segment.nbytes, open_driver(device))
    pin.start()
    assert pin.wait(), pin.reason
    return pin


def numbered(nbytes: int) -> torch.Tensor:
    return (torch.arange(nbytes, dtype=torch.int64) * 7919 >> 3).to(torch.uint8)


def start_other(segment: Segment, task: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("other_process.py")), str(segment.fd), str(segment.nbytes), task],
        pass_fds=[segment.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_locked_memfd_is_pinned_for_torch_until_unlocked(segment: Segment, device: torch.device) -> None:
    assert not segment.bytes.is_pinned()
    for _ in range(2):
        pin = pinned(segment, device)
        assert segment.bytes.is_pinned()
        assert segment.bytes[4096:8192].is_pinned()
        pin.close()
        assert not segment.bytes.is_pinned()


def test_an_asynchronous_copy_from_locked_rows_has_their_bytes(segment: Segment, device: torch.device) -> None:
    want = numbered(segment.nbytes)
    segment.bytes.copy_(want)
    pin = pinned(segment, device)
    got = torch.empty(segment.nbytes, dtype=torch.uint8, device=device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call,unused-ignore]
    got.copy_(segment.bytes, non_blocking=True)
    begin.record()
    got.copy_(segment.bytes, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    rate = segment.nbytes / begin.elapsed_time(end) / 1e6
    sys.stdout.write(f"host to device from a locked memfd: {rate:.1f} GB/s\n")
    assert torch.equal(got.cpu(), want)
    pin.close()


def test_memory_that_somebody_else_has_locked_stays_theirs(segment: Segment, device: torch.device) -> None:
    first, second = pinned(segment, device), HostPin(segment.address, segment.nbytes, open_driver(device))
    second.start()
    assert not second.wait()
    with pytest.warns(PinningWarning, match="712"):
        second.warn_once()
    second.close()
    assert segment.bytes.is_pinned()
    first.close()
    assert not segment.bytes.is_pinned()


def test_a_refusal_leaves_no_error_behind_for_the_next_operation(device: torch.device) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    pin = HostPin(page, page, LibCuda(device.index))  # nothing is mapped there
    pin.start()
    assert not pin.wait()
    with pytest.warns(PinningWarning, match="could not be page-locked"):
        pin.warn_once()
    assert int(torch.ones(8, device=device).sum()) == 8
    torch.cuda.synchronize()
    pin.close()


def test_locking_does_not_change_the_current_device(segment: Segment, device: torch.device) -> None:
    last = torch.cuda.device_count() - 1
    pin = HostPin(segment.address, segment.nbytes, open_driver(torch.device("cuda", last)))
    pin.start()
    assert pin.wait()
    pin.close()
    assert torch.cuda.current_device() == device.index


def test_two_processes_lock_the_same_pages_and_read_the_same(segment: Segment, device: torch.device) -> None:
    want = numbered(segment.nbytes)
    segment.bytes.copy_(want)
    pin = pinned(segment, device)
    with start_other(segment, "sum") as other:
        assert line_of(other) == "locked"
        mine = int(segment.bytes.to(device, non_blocking=True).sum(dtype=torch.int64))
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()
        assert int(line_of(other)) == mine == int(want.sum(dtype=torch.int64))
        assert line_of(other) == "unlocked"
        assert segment.bytes.is_pinned()
        got = segment.bytes.to(device, non_blocking=True)
        assert torch.equal(got.cpu(), want)
    assert other.returncode == 0
    pin.close()


def test_pages_of_a_process_killed_in_mid_copy_are_free_at_once(segment: Segment, device: torch.device) -> None:
    pin = pinned(segment, device)
    with start_other(segment, "copy") as other:
        assert line_of(other) == "locked"
        assert line_of(other) == "copying"
        other.kill()
        assert other.wait(60) == -9
    want = numbered(segment.nbytes)
    segment.bytes.copy_(want)
    got = segment.bytes.to(device, non_blocking=True)
    assert torch.equal(got.cpu(), want)
    assert torch.equal(segment.bytes, want)
    pin.close()
