"""A trial of the kernels, in a process of its own, where they may crash or hang.

The process that loads the kernels must survive them: it is the zygote, from which all workers come, or a training
process. A fork would not do, because a training process has threads. So a fresh interpreter (`functions`) makes the
calls and returns the results, which `prepserver.transform.native` compares with the right ones.
"""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from prepserver.transform.native import functions

DEADLINE_S = 30.0
"""For all calls together. They take milliseconds, but a loaded machine is slow."""


class Call(NamedTuple):
    """A call of a C function; its arguments are numbers, bytes and at most one `functions.OUT`, of `out_bytes`."""

    name: str
    arguments: tuple[Any, ...]
    out_bytes: int = 0


class Result(NamedTuple):
    """The result of a call: the number that it returned, and the content of its `OUT`."""

    returned: int
    out: bytes


class Failed(Exception):
    """The trial could not make all calls; the text says why."""


def make(calls: Sequence[Call], library: str, pillow: str) -> tuple[bytes, list[Result]]:
    """Make `calls`, in order, in a process of their own; `pillow` is the library from which libjpeg is taken.

    Returns the path of the libjpeg that was used, and the result of each call; raises `Failed` if the process died, or
    took too long.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise Failed("there is no Python interpreter to try them in")
    command = [sys.executable, "-I", "-S", str(functions.__file__), library, pillow]
    try:
        done = subprocess.run(
            command, input=json.dumps(calls, default=_text).encode(), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Failed(f"they did not end within {DEADLINE_S} s") from None
    except OSError as error:
        raise Failed(f"{sys.executable} does not start: {error.strerror}") from error
    if done.returncode:
        raise Failed(
            f"they were killed by {signal.Signals(-done.returncode).name}"
            if -done.returncode in set(signal.Signals)
            else f"exit status {done.returncode}"
        )
    bound_to, _, rest = done.stdout.partition(b"\n")
    if len(rest) != sum(4 + call.out_bytes for call in calls):
        raise Failed("they ended too soon")
    results, at = [], 0
    for call in calls:
        (returned,) = struct.unpack_from("<i", rest, at)
        results.append(Result(returned, rest[at + 4 : at + 4 + call.out_bytes]))
        at += 4 + call.out_bytes
    return bound_to, results


def _text(value: bytes) -> str:
    return value.decode("latin-1")
