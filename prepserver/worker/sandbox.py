"""What a worker cannot do, because it parses files from strangers: the parts, and when each of them begins.

A process confines itself as soon as it is forked (`confine`: no new privileges, a system call filter, limits), and
says last which files it may open (`Seal`), because it learns only from the daemon what its streams read. Each part
can only be made narrower afterwards, never wider: a worker that is to read more is replaced.

Which parts there are is tried once, by the zygote, in a child that is thrown away (`find_out`): a container or a
service manager may refuse what the kernel has.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sysconfig
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass

from prepserver.worker import landlock, seccomp
from prepserver.worker.syscalls import prctl

_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h

# A packed source keeps up to 400 shards open; this is forty of them.
_OPEN_FILES = 16384


@dataclass(frozen=True, slots=True)
class Parts:
    """Which parts of the sandbox there are.

    Attributes:
        landlock: Version of the kernel's interface, 0 for no Landlock.
        seccomp: Whether the system call filter is on.
        no_new_privs: Whether a program could not get more privileges than it was started with.
        missing: What there is not, and why; empty if nothing is missing, or nothing was asked for.
    """

    landlock: int = 0
    seccomp: bool = False
    no_new_privs: bool = False
    missing: str = ""

    def __str__(self) -> str:
        """What there is, such as ``landlock 7, seccomp, no_new_privs``."""
        found = (
            f"landlock {self.landlock}" * bool(self.landlock),
            "seccomp" * self.seccomp,
            "no_new_privs" * self.no_new_privs,
        )
        return ", ".join(filter(None, found)) or "none"


def find_out() -> Parts:
    """The parts that work here, tried in a child process. Call it while there is one thread."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, json.dumps(asdict(_try_all())).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return Parts(**json.loads(said)) if said else Parts(missing="the trial of the sandbox ended without a word")


def _try_all() -> Parts:
    try:
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    except OSError as e:
        return Parts(missing=f"no_new_privs ({e.strerror}), and what needs it: seccomp, landlock")
    missing = []
    filtered, version = True, 0
    try:
        seccomp.install()
    except OSError as e:
        filtered = False
        missing.append(f"seccomp ({e.strerror})")
    try:
        found = landlock.version()
        landlock.restrict(found, ())
        version = found
    except OSError as e:
        missing.append(f"landlock ({e.strerror}; it needs Linux 5.13 and landlock among the kernel's lsm=)")
    return Parts(version, filtered, True, ", ".join(missing))


def confine(parts: Parts, allowed: Container[str] = ()) -> None:
    """Confines this process, but for the files that it may open.

    There is no limit on the size of files, because the log may be one, nor on memory: what a picture may take is
    bounded when its header is read, and address space says little about it.

    Args:
        parts: From `find_out`.
        allowed: Names of system calls that it needs nevertheless.

    Raises:
        OSError: The kernel refuses what it has taken in the trial.
    """
    if not parts.no_new_privs:
        return
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files[0], _OPEN_FILES), min(files[1], _OPEN_FILES)))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    if parts.seccomp:
        seccomp.install(allowed)


def _code() -> list[str]:
    """Where Python and the packages lie: libraries import parts of themselves when these are first used."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return [path for path in dict.fromkeys(map(sysconfig.get_path, names)) if os.path.isdir(path)]


class Seal:
    """Which files this process may open: all of them until `close`, then only those below some folders.

    Args:
        parts: From `find_out`. Without Landlock closing changes nothing.
        always: Folders that stay open, for plug-ins.
    """

    def __init__(self, parts: Parts, always: Iterable[str] = ()) -> None:
        self._always = tuple(always)
        self._landlock = parts.landlock
        self._places: tuple[str, ...] | None = None
        self._unclear: frozenset[str] = frozenset()

    def close(self, places: Iterable[str], writable: Iterable[str] = ()) -> None:
        """Closes it around `places`, folders with all that is below them; again does nothing.

        Raises:
            OSError: The kernel refuses what it has taken in the trial.
        """
        if self._places is not None or not self._landlock:
            return
        self._places = tuple(dict.fromkeys(places))
        landlock.restrict(self._landlock, (*self._places, *self._always, *_code()), writable)
        # On some file systems opening fails though access(2) would allow it: they say nothing about the seal.
        self._unclear = frozenset(filter(_refused, self._places))

    def holds(self, places: Iterable[str]) -> bool:
        """Whether files below all of `places` can be opened, or could be, while it is open."""
        if self._places is None:
            return True
        return all(
            any(f"{place}/".startswith(f"{mine.rstrip('/')}/") for mine in self._places) and not self._lost(place)
            for place in places
        )

    @property
    def is_stale(self) -> bool:
        """Whether it keeps out what it was to let in.

        The kernel's rules belong to the folders that were there: one that was made anew under its old name, or lies
        on a file system that was mounted again, is another.
        """
        return any(map(self._lost, self._places or ()))

    def _lost(self, place: str) -> bool:
        return place not in self._unclear and _refused(place)


OPEN = Seal(Parts())
"""For code that runs without a sandbox."""


def _refused(place: str) -> bool:
    """Whether Landlock, and not the place's own mode, keeps this process out."""
    try:
        os.close(os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        return os.access(place, os.R_OK, effective_ids=True)  # which Landlock does not rule
    except OSError:
        return False
    return False
