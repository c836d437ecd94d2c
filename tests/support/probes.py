"""What a process tries that has been taken over by a file: each try with the error it gets, or "done"."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prepserver.worker.syscalls import call

# x86-64 numbers with arguments that the kernel would refuse otherwise than with EPERM, if it looked at them.
RAW = {
    "socketpair": (53, 0, 0, 0, 0), "connect": (42, -1, 0, 0), "bind": (49, -1, 0, 0), "accept4": (288, -1, 0, 0, 0),
    "execveat": (322, -1, 0, 0, 0, 0), "vfork": (56, 0x4000 | 0x100 | 17, 0, 0, 0, 0),
    "ptrace": (101, 2, 1, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 1), "pidfd_getfd": (438, -1, 0, 0),
    "bpf": (321, 99, 0, 0), "perf_event_open": (298, 0, 0, 0, 0, 0), "userfaultfd": (323, 0xFFFF),
    "keyctl": (250, 9999, 0, 0, 0, 0), "io_uring_setup": (425, 0, 0), "open_by_handle_at": (304, -1, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0), "unshare": (272, 1), "setns": (308, -1, 0),
}  # fmt: skip


def probe(inside: str, outside: str, daemon: int) -> dict[str, str]:
    """Tries everything that a worker must not be able to do, and a few things that it must.

    Args:
        inside: A file that may be read.
        outside: One that may not.
        daemon: Pid of a process of the same user.
    """
    tries: dict[str, Callable[[], Any]] = {
        "read inside": lambda: Path(inside).read_bytes(),
        "list inside": lambda: os.listdir(os.path.dirname(inside)),
        "start a thread": _thread,
        "signal itself": lambda: os.kill(os.getpid(), 0),
        "write inside": lambda: os.open(os.path.dirname(inside) + "/new", os.O_WRONLY | os.O_CREAT),
        "remove inside": lambda: os.unlink(inside),
        "shorten inside": lambda: os.truncate(inside, 1),
        "empty inside": lambda: os.open(inside, os.O_RDONLY | os.O_TRUNC),
        "read outside": lambda: os.open(outside, os.O_RDONLY),
        "write outside": lambda: os.open(outside, os.O_WRONLY),
        "list outside": lambda: os.listdir(os.path.dirname(outside)),
        "read the daemon's memory": lambda: os.open(f"/proc/{daemon}/mem", os.O_RDONLY),
        "change a mode": lambda: os.chmod(outside, 0o600),
        "change times": lambda: os.utime(outside),
        "change an owner": lambda: os.chown(outside, os.getuid(), -1),
        "set an attribute": lambda: os.setxattr(outside, "user.x", b"1"),
        "unix socket": lambda: socket.socket(socket.AF_UNIX),
        "inet socket": lambda: socket.socket(socket.AF_INET),
        "execute": lambda: os.execv("/nowhere/at/all", ["x"]),
        "fork": _fork,
        "signal the daemon": lambda: os.kill(daemon, 0),
        "open the daemon's pidfd": lambda: os.pidfd_open(daemon),
        "slow the daemon down": lambda: os.setpriority(os.PRIO_PROCESS, daemon, os.getpriority(0, daemon)),
        "limit the daemon": lambda: call(302, daemon, 7, None, None),
        "outlive the zygote": lambda: call(157, 1, 0, 0, 0, 0),
        "signal by a descriptor": lambda: call(72, 0, 8, daemon),
        "type into the terminal": lambda: call(16, 0, 0x5412, 0),
        "clone3": lambda: call(435, 0, 0),
    }
    tries |= {name: partial(call, *numbers) for name, numbers in RAW.items()}
    return {name: _outcome(one) for name, one in tries.items()}


ALLOWED = {"read inside", "list inside", "start a thread", "signal itself"}
OF_LANDLOCK = {
    "write inside", "remove inside", "shorten inside", "empty inside", "read outside", "write outside", "list outside",
    "read the daemon's memory",
}  # fmt: skip


def expected(name: str) -> str:
    """The outcome of a try in a sandbox of all parts."""
    if name in ALLOWED:
        return "done"
    return "EACCES" if name in OF_LANDLOCK else "ENOSYS" if name == "clone3" else "EPERM"


def _outcome(one: Callable[[], Any]) -> str:
    try:
        one()
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    except RuntimeError as e:
        return str(e)
    return "done"


def _thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def _fork() -> None:
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        os._exit(0)
