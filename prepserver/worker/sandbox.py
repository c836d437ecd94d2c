"""The sandbox of workers, which parse files from strangers.

A process confines itself right after the fork (`confine`: no new privileges, a system call filter, limits). The files
that it may open are restricted later (`Seal`), when it knows what its streams read. No part can be widened again: a
worker that has to read more is replaced.

The zygote tries once, in a child, which parts work (`find_out`): a container or a service manager may refuse what the
kernel offers.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sysconfig
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from prepserver.worker import landlock, seccomp
from prepserver.worker.syscalls import prctl

_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h

# A packed source keeps up to 400 shards open; this is forty of them.
_OPEN_FILES = 16384


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the sandbox that work here."""

    landlock: int = 0  # version of the kernel's interface, 0 for no Landlock
    seccomp: bool = False  # whether the system call filter works
    no_new_privs: bool = False  # whether the process can give up gaining privileges
    missing: str = ""  # missing parts with the reason; empty if none is missing, or the sandbox is turned off

    def __str__(self) -> str:
        """The parts, such as ``landlock 7, seccomp, no_new_privs``."""
        found = (
            f"landlock {self.landlock}" * bool(self.landlock),
            "seccomp" * self.seccomp,
            "no_new_privs" * self.no_new_privs,
        )
        return ", ".join(filter(None, found)) or "none"


def find_out() -> Parts:
    """Tries the parts in a child process; call it while this process has one thread."""
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
    return Parts(**json.loads(said)) if said else Parts(missing="the trial of the sandbox gave no answer")


def _try_all() -> Parts:
    try:
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    except OSError as e:
        return Parts(missing=f"no_new_privs ({e.strerror}), and seccomp and landlock, which need it")
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
    """Confines this process, except for the files that it may open; `allowed` names system calls that it needs.

    File sizes have no limit, because the log may be a file. Memory has its own: `limit_data`.

    Raises:
        OSError: The kernel refuses what it accepted in `find_out`.
    """
    if not parts.no_new_privs:
        return
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files[0], _OPEN_FILES), min(files[1], _OPEN_FILES)))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    if parts.seccomp:
        seccomp.install(allowed, keeps_lengths=0 < parts.landlock < landlock.CONTROLS_LENGTHS)


def limit_data(more_bytes: int) -> None:
    """Limits what this process may allocate beyond what it has now; 0 for no limit.

    What it shares with others, such as rings and caches, does not count; nor do the pages of the zygote, which may hold
    a plug-in's dataset.
    """
    if more_bytes:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = pages * resource.getpagesize() + more_bytes
        if (before := resource.getrlimit(resource.RLIMIT_DATA)[1]) != resource.RLIM_INFINITY:
            most = min(most, before)  # such as LimitDATA= of a unit, which only root may raise
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


NETWORK_CALLS = frozenset({"socket", "socketpair", "connect"})
"""System calls that reading from the network needs; `seccomp` lets internet sockets be made, and no others."""

_NETWORK_PATHS = (
    # names of machines
    *("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf"),
    "/run/systemd/resolve",
    # whom TLS trusts
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
)
_CREDENTIALS = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("GOOGLE_SERVICE_ACCOUNT", "AZURE_FEDERATED_TOKEN_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Variables that name files. Their folders must stay readable, because such files are replaced while in use."""


def _for_network() -> list[str]:
    named = (os.environ.get(name, "") for name in _CREDENTIALS)
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in named if path.startswith("/")]
    return [*_NETWORK_PATHS, *folders]


# Found at the import, in the zygote: it takes milliseconds, which otherwise each attach would pay in its indexer.
_LIBRARIES = tuple(dict.fromkeys(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))))


def _code() -> list[str]:
    """The folders of Python and its packages: libraries import some modules only at their first use.

    Some installers put links there, which lead to one copy of each package.
    """
    found = [path for path in _LIBRARIES if os.path.isdir(path)]
    links = [each.path for path in found for each in os.scandir(path) if each.is_symlink() and each.is_dir()]
    return [*found, *dict.fromkeys(map(os.path.realpath, links))]


class Seal:
    """Restricts which files this process may open: all until `close`, then only those below some folders.

    Without Landlock, `close` changes nothing. The folders `always` stay readable, for plug-ins; with `network`, this
    process may connect to other machines.
    """

    def __init__(self, parts: Parts, always: Iterable[str] = (), network: bool = False) -> None:
        self._always = (*always, *(_for_network() if network else ()))
        self._network = network
        self._landlock = parts.landlock
        self._places: tuple[str, ...] | None = None
        self._unclear: frozenset[str] = frozenset()

    def close(self, places: Iterable[str], writable: Iterable[str] = ()) -> None:
        """Restricts this process to the folders `places`; a second call does nothing. Errors as `confine`."""
        if self._places is not None or not self._landlock:
            return
        self._places = tuple(dict.fromkeys(places))
        landlock.restrict(self._landlock, (*self._places, *self._always, *_code()), writable, self._network)
        # On some file systems opening fails although access(2) allows it: such places say nothing about the seal.
        self._unclear = frozenset(filter(_refused, self._places))

    def holds(self, places: Iterable[str]) -> bool:
        """Says whether this process may open files below all of `places`."""
        if self._places is None:
            return True
        return all(
            any(f"{place}/".startswith(f"{mine.rstrip('/')}/") for mine in self._places) and not self._lost(place)
            for place in places
        )

    @property
    def is_stale(self) -> bool:
        """True if the kernel now refuses a folder of `close`: it was replaced or mounted again."""
        return any(map(self._lost, self._places or ()))

    def _lost(self, place: str) -> bool:
        return place not in self._unclear and _refused(place)


OPEN = Seal(Parts())  # for code that runs without a sandbox


def _refused(place: str) -> bool:
    """Says whether Landlock, and not the place's own mode, keeps this process out."""
    try:
        os.close(os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        return os.access(place, os.R_OK, effective_ids=True)  # Landlock does not control access(2)
    except OSError:
        return False
    return False
