from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator

import pytest

from prepserver import checksum
from prepserver.transform import native


@pytest.fixture(params=["1", "0"])
def kernel_wanted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    monkeypatch.setenv("PREPSERVER_NATIVE", request.param)
    checksum._kernel.cache_clear()
    yield request.param == "1"
    checksum._kernel.cache_clear()


def test_the_numbers_are_those_of_zlib(kernel_wanted: bool) -> None:
    if kernel_wanted and native.path().name != "native":
        pytest.skip(f"no compiled kernels: {native.path().reason}")
    assert (checksum._kernel() is not None) == kernel_wanted
    rng = random.Random(0)
    for size in (*range(70), 4095, 4096, 4097, *(rng.randrange(200_000) for _ in range(200))):
        data, start, before = os.urandom(size), rng.randrange(size + 1), rng.randrange(1 << 32)
        expected = zlib.crc32(data[start:], before)
        assert checksum.crc32(data, start, before) == expected
        if (kernel := checksum._kernel()) is not None:
            assert kernel(data, start, size - start, before) == expected


def test_a_kernel_that_disagrees_with_zlib_is_not_used(kernel_wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda data, before=0: 1)
    assert checksum._kernel() is None
    assert checksum.crc32(bytes(10_000)) == 1


def test_a_library_without_the_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_LIBRARY", "/dev/null")
    checksum._kernel.cache_clear()
    assert checksum.crc32(bytes(10_000)) == zlib.crc32(bytes(10_000))
    checksum._kernel.cache_clear()
