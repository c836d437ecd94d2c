"""System calls for which Python, and sometimes libc, has no function."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(number: int, *arguments: int | bytes | None) -> int:
    """Makes a system call, which may raise `OSError`; bytes are passed by address, None as a null pointer."""
    passed = [a if isinstance(a, bytes) else ctypes.c_long(a or 0) for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *passed))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def prctl(option: int, argument: int) -> None:
    """``prctl(option, argument)`` of this process; may raise `OSError`."""
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
