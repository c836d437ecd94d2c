"""System calls that neither Python nor, in places, libc has a function for."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(number: int, *arguments: int | bytes | None) -> int:
    """Makes a system call; bytes are passed by their address, None as a null pointer.

    Raises:
        OSError: It failed.
    """
    passed = [a if isinstance(a, bytes) else ctypes.c_long(a or 0) for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *passed))
    if result < 0:
        number_of = ctypes.get_errno()
        raise OSError(number_of, os.strerror(number_of))
    return result


def prctl(option: int, argument: int) -> None:
    """``prctl(option, argument)`` of this process.

    Raises:
        OSError: It failed.
    """
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
