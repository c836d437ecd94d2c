"""The process that may die: examines inputs that come by stdin, under ASan and UBSan if it was started with them.

An input is its length, four bytes, and its bytes; the answer one line, how many branches it was the first to take, or
"died" where it killed the child that examined it or showed a defect: stderr has the report, and the next child is a
fork of what was loaded once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import numpy as np
import torch

from prepserver.transform import native
from prepserver.transform.native.compiled import Kernels
from tests.fuzz.examine import Difference, Examiner

DIED = b"died\n"


def _loaded(kernels: str, libjpeg: str) -> Kernels:
    """The kernels of this library, with functions of that libjpeg, after the check that all kernels pass."""
    native._LIBRARY = Path(kernels)
    native._imaging = SimpleNamespace(__file__=libjpeg, jpeglib_version="6.2", libjpeg_turbo_version="3")  # type: ignore[assignment, attr-defined]
    native.digest = lambda folder: ""
    native.forget()
    found = native.kernels()
    if found is None or not found.own_entropy or "without" in native.path().reason:
        sys.exit(f"{kernels} with {libjpeg}: {native.path().reason}")
    return found


def _maps(*libraries: str) -> list[np.ndarray]:
    """What coverage.c counts in each library; none in one that was built without it."""
    maps = []
    for library in libraries:
        try:
            taken = (ctypes.c_uint8 * (1 << 16)).in_dll(ctypes.CDLL(library), "fuzz_coverage")
        except ValueError:
            continue
        maps.append(np.ctypeslib.as_array(taken))
    return maps


def _serve(examiner: Examiner, maps: list[np.ndarray], seen: list[np.ndarray]) -> None:
    while (data := _next(sys.stdin.buffer)) is not None:
        for taken in maps:
            taken[:] = 0
        try:
            signal.alarm(60)
            examiner.examine(data)
            signal.alarm(0)
        except Exception as error:  # noqa: BLE001 - whatever it is, it should not be
            name = "" if isinstance(error, Difference) else f"{type(error).__name__}: "
            os.write(2, f"SUMMARY: {name}{error}\n{traceback.format_exc()}".encode())
            os._exit(1)
        new = 0
        for taken, known in zip(maps, seen, strict=True):
            new += int(np.count_nonzero(taken > known))
            known |= taken
        os.write(1, b"%d\n" % new)
    os._exit(0)


def _next(stdin: BinaryIO) -> bytes | None:
    length = stdin.read(4)
    return stdin.read(int.from_bytes(length, "little")) if length else None


def main(libraries: list[str]) -> None:
    """Serve.

    Args:
        libraries: The kernels and the libjpeg that they are to use; none for the kernels that are installed.
    """
    torch.set_num_threads(1)
    found = _loaded(*libraries) if libraries else native.kernels()
    if found is None:
        sys.exit(native.path().reason)
    maps = _maps(*libraries)
    seen = [np.frombuffer(mmap.mmap(-1, 1 << 16), np.uint8) for _ in maps]  # shared with all children
    examiner = Examiner(found)
    os.write(1, b"ready\n")
    while True:
        child = os.fork()
        if child == 0:
            _serve(examiner, maps, seen)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        os.write(2, f"SUMMARY: ended with {status}\n".encode())
        os.write(1, DIED)


if __name__ == "__main__":
    main(sys.argv[1:])
