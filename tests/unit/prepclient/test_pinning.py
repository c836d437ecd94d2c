"""Page-locking against a recording driver, and the ctypes shell against callbacks in the shape of libcuda."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prepclient import CenterCrop, PrepClient, SyntheticImages, pinning
from prepclient.pinning import CAPTURE_ERRORS, PORTABLE, RELAXED, HostPin, LibCuda, PinDriver, PinningWarning
from prepserver.memory.mapping import MemoryMap
from tests.support.device_client import DeviceClient
from tests.support.fake_device import RunningDevice
from tests.support.waiting import PATIENCE_S

BASE = 0x7F00_0000_0000


class RecordingDriver:
    """Locks nothing and remembers everything; `codes` are the answers to the calls of register."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.registered: list[tuple[int, int]] = []
        self.unregistered: list[int] = []
        self.unlock_codes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def register(self, address: int, nbytes: int) -> int:
        assert self.gate.wait(PATIENCE_S)
        self.registered.append((address, nbytes))
        return self.codes.pop(0) if self.codes else 0

    def unregister(self, address: int) -> int:
        self.unregistered.append(address)
        return self.unlock_codes.pop(0) if self.unlock_codes else 0

    def describe(self, code: int) -> str:
        return f"words for {code}"


def test_the_whole_mapping_is_locked_once_and_unlocked_once() -> None:
    driver = RecordingDriver()
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    assert pin.wait()
    pin.close()
    pin.close()
    assert driver.registered == [(BASE, 4096)]
    assert driver.unregistered == [BASE]
    assert pin.state == "closed"


def test_one_chunk_is_locked_in_the_background() -> None:
    driver = RecordingDriver()
    driver.gate.clear()
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    assert pin.state == "pending"
    assert not pin.wait(timeout_s=0)
    driver.gate.set()
    assert pin.wait()
    pin.close()


def test_closing_while_it_is_being_locked_waits_and_unlocks() -> None:
    driver = RecordingDriver()
    driver.gate.clear()
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    threading.Timer(0.02, driver.gate.set).start()
    pin.close()
    assert driver.unregistered == [BASE]
    assert pin.state == "closed"


def test_somebody_elses_lock_does_not_count() -> None:
    driver = RecordingDriver(712)
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    assert not pin.wait()
    with pytest.warns(PinningWarning, match="words for 712"):
        pin.warn_once()
    pin.close()
    assert driver.unregistered == []


@pytest.mark.parametrize("code", CAPTURE_ERRORS)
def test_locking_is_tried_again_while_a_graph_is_captured(code: int) -> None:
    driver = RecordingDriver(code, code)
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    assert pin.wait()
    assert driver.registered == [(BASE, 4096)] * 3
    driver.unlock_codes = [code, 0]
    pin.close()
    assert driver.unregistered == [BASE] * 2


def test_locking_begins_when_the_memory_is_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_PAGES_PATIENCE_S", math.inf)
    driver, asked = RecordingDriver(), threading.Event()
    present = 1000

    def absent_from(start: int) -> int:
        assert start <= present
        asked.set()
        return present

    pin = HostPin(BASE, 4096, driver, absent_from=absent_from)
    pin.start()
    for upto in (1000, 2000, 3000):
        present = upto
        asked.clear()
        assert asked.wait(PATIENCE_S)
        assert driver.registered == []
    present = 4096
    assert pin.wait()
    assert driver.registered == [(BASE, 4096)]
    pin.close()


def test_memory_that_nobody_faults_in_is_locked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_PAGES_PATIENCE_S", 0.05)
    pin = HostPin(BASE, 4096, RecordingDriver(), absent_from=lambda start: 0)
    pin.start()
    assert pin.wait()
    pin.close()


def test_closing_ends_the_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_PAGES_PATIENCE_S", math.inf)
    driver = RecordingDriver()
    pin = HostPin(BASE, 4096, driver, absent_from=lambda start: 0)
    pin.start()
    pin.close()
    assert driver.registered == []


def test_a_refusal_is_one_warning_with_the_drivers_words() -> None:
    pin = HostPin(BASE, 3 << 20, RecordingDriver(2))
    pin.start()
    assert not pin.wait()
    assert pin.state == "pageable"
    with pytest.warns(PinningWarning, match=r"3 MiB of shared memory could not be page-locked: words for 2"):
        pin.warn_once()
    pin.warn_once()
    pin.close()


class Refuses(RunningDevice):
    def pin_driver(self) -> PinDriver:
        return RecordingDriver(2)


@pytest.mark.parametrize("batches_of", [iter, PrepClient.progress])
def test_the_warning_points_at_the_users_loop(batches_of: Callable[[PrepClient], Iterator[Any]]) -> None:
    train = DeviceClient(SyntheticImages(4, 16), [CenterCrop(8)], inline=True, fake=Refuses())
    with train, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in batches_of(train):
            pin = train._feed().rows.links[0].rows._pin
            assert pin is not None
            pin.wait(PATIENCE_S)  # the next step warns
    assert [(warning.category, warning.filename) for warning in caught] == [(PinningWarning, __file__)]


def test_a_driver_that_raises_is_a_refusal_and_not_a_dead_thread() -> None:
    class Raises(RecordingDriver):
        def register(self, address: int, nbytes: int) -> int:
            raise RuntimeError("no CUDA-capable device is detected")

    pin = HostPin(BASE, 4096, Raises())
    pin.start()
    assert not pin.wait()
    assert "no CUDA-capable device" in str(pin.reason)
    pin.close()


def test_a_forked_child_never_unlocks() -> None:
    driver = RecordingDriver()
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    assert pin.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:
        pin.close()
        os._exit(7 if pin.state == "closed" and not driver.unregistered else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    pin.close()
    assert driver.unregistered == [BASE]


def test_a_child_forked_during_locking_can_close_at_once() -> None:
    driver = RecordingDriver()
    driver.gate.clear()
    pin = HostPin(BASE, 4096, driver)
    pin.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        pin.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    driver.gate.set()
    pin.close()


def test_the_mapping_lives_as_long_as_its_lock() -> None:
    class MemoryMap: ...

    mapping = MemoryMap()
    lives = weakref.ref(mapping)
    pin = HostPin(BASE, 4096, RecordingDriver(), keep=mapping)
    del mapping
    pin.start()
    assert pin.wait()
    assert lives() is not None
    pin.close()
    assert lives() is None


def test_a_mapping_that_cannot_be_unlocked_is_never_unmapped() -> None:
    fd = os.memfd_create("prepserver-test", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    mapping = MemoryMap(fd, 0, 4096, writable=True)
    os.close(fd)
    address = mapping.address
    driver = RecordingDriver()
    driver.unlock_codes = [1]
    pin = HostPin(address, 4096, driver, keep=mapping)
    pin.start()
    assert pin.wait()
    pin.close()
    del mapping, pin
    gc.collect()
    assert f"{address:x}-" in Path("/proc/self/maps").read_text()


class FakeLibCuda:
    """Functions with libcuda's names, called through ctypes for real, with a stack of contexts per thread."""

    CONTEXT = 0xC0FFEE

    def __init__(self, refuse: int = 0) -> None:  # noqa: C901 - one function for each of libcuda's
        self.calls: list[tuple[str, int, int, int]] = []
        self.retained: list[int] = []
        self.stacks: dict[int, list[int]] = {}
        self.modes: dict[int, int] = {}  # of capturing, by thread
        integer, pointer = ctypes.c_int, ctypes.c_void_p
        make = ctypes.CFUNCTYPE

        def stack() -> list[int]:
            return self.stacks.setdefault(threading.get_ident(), [])

        def get_device(out: int, ordinal: int) -> int:
            ctypes.c_int.from_address(out).value = 40 + ordinal
            return 0

        def retain(out: int, device: int) -> int:
            self.retained.append(device)
            ctypes.c_void_p.from_address(out).value = self.CONTEXT
            return 0

        def push(context: int) -> int:
            stack().append(context)
            return 0

        def pop(out: int) -> int:
            ctypes.c_void_p.from_address(out).value = stack().pop()
            return 0

        def exchange(mode: int) -> int:
            assert stack() == [self.CONTEXT]
            place = ctypes.c_int.from_address(mode)
            before = self.modes.get(threading.get_ident(), 0)
            self.modes[threading.get_ident()], place.value = place.value, before
            return 0

        def register(address: int, nbytes: int, flags: int) -> int:
            assert stack() == [self.CONTEXT]
            assert self.modes[threading.get_ident()] == RELAXED
            self.calls.append(("register", address, nbytes, flags))
            return refuse

        def unregister(address: int) -> int:
            assert stack() == [self.CONTEXT]
            assert self.modes[threading.get_ident()] == RELAXED
            self.calls.append(("unregister", address, 0, 0))
            return 0

        words = ctypes.create_string_buffer(b"out of memory")

        def error_string(code: int, out: int) -> int:
            if code != 2:
                return 1
            ctypes.c_void_p.from_address(out).value = ctypes.addressof(words)
            return 0

        self.functions = SimpleNamespace(
            cuDeviceGet=make(integer, pointer, integer)(get_device),
            cuDevicePrimaryCtxRetain=make(integer, pointer, integer)(retain),
            cuCtxPushCurrent_v2=make(integer, pointer)(push),
            cuCtxPopCurrent_v2=make(integer, pointer)(pop),
            cuMemHostRegister_v2=make(integer, pointer, ctypes.c_size_t, ctypes.c_uint)(register),
            cuMemHostUnregister=make(integer, pointer)(unregister),
            cuThreadExchangeStreamCaptureMode=make(integer, pointer)(exchange),
            cuGetErrorString=make(integer, integer, pointer)(error_string),
        )


def test_the_driver_is_called_in_the_devices_context() -> None:
    """The caller's context is put back."""
    fake = FakeLibCuda()
    pin = HostPin(BASE, 6 << 30, LibCuda(1, fake.functions))
    pin.start()
    assert pin.wait()
    pin.close()
    assert fake.calls == [("register", BASE, 6 << 30, PORTABLE), ("unregister", BASE, 0, 0)]
    assert fake.retained == [41]
    assert list(fake.stacks.values()) == [[], []]
    assert list(fake.modes.values()) == [0, 0]


def test_a_code_comes_with_the_drivers_words_or_bare() -> None:
    driver = LibCuda(0, FakeLibCuda(refuse=2).functions)
    assert driver.register(BASE, 4096) == 2
    assert driver.describe(2) == "out of memory (code 2)"
    assert driver.describe(999) == "code 999"


def test_a_libcuda_without_the_functions_is_as_good_as_none() -> None:
    with pytest.raises(OSError, match="lacks a function"):
        LibCuda(0, SimpleNamespace())


def _no_libcuda() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


@pytest.mark.skipif(not _no_libcuda(), reason="there is a libcuda here")
def test_without_libcuda_opening_it_says_so() -> None:
    with pytest.raises(OSError, match=r"libcuda\.so\.1"):
        LibCuda(0)
