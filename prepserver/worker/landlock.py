"""Restricts which files a process may open, by the kernel's Landlock: irrevocably, and without privileges.

Landlock does not control modes, owners, times and attributes; `seccomp` refuses these.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from prepserver.worker.syscalls import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every machine type of interest
_ASK_VERSION = 1
_PATH_BENEATH = 1

# linux/landlock.h: LANDLOCK_ACCESS_FS_*
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = (1 << n for n in (1, 2, 3, 5, 8, 14))
_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE

CONTROLS_LENGTHS = 3
"""From this version on (Linux 6.2), a process that may only read a file cannot shorten it either."""

# Number of file rights in each version of the interface; they are bits from 0 on.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_BIND, _CONNECT = 1, 2  # LANDLOCK_ACCESS_NET_*, by TCP
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6  # no TCP; no signals and no abstract sockets outside


def version() -> int:
    """This kernel's version of the interface; raises `OSError` if it has none or refuses to answer."""
    return call(_CREATE_RULESET, None, 0, _ASK_VERSION)


def restrict(known: int, readable: Iterable[str], writable: Iterable[str] = (), connects: bool = False) -> None:
    """From now on this process can open only files below these folders, and connect by TCP only if it `connects`.

    It must have set no_new_privs. A folder that does not exist now cannot be opened later either, because rules apply
    to folders and not to names. `readable` may name files, too; in `writable` folders files may be read, written, made
    and removed. `known` is from `version`.

    Raises:
        OSError: The kernel refuses.
    """
    files = (1 << _FILE_RIGHTS[min(known, max(_FILE_RIGHTS))]) - 1
    network = (_BIND if connects else _BIND | _CONNECT) if known >= _NETWORK_SINCE else 0
    scopes = 0b11 if known >= _SCOPES_SINCE else 0
    ruleset = call(_CREATE_RULESET, struct.pack("=QQQ", files, network, scopes), 24, 0)
    try:
        for rights, folders in ((_READ & files, readable), (_WRITE & files, writable)):
            for folder in folders:
                _allow(ruleset, folder, rights)
        call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        # O_DIRECTORY makes an automounter mount it; a rule for the folder underneath would be useless.
        place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights &= _READ_FILE | _WRITE_FILE  # the kernel refuses others for a file
    except OSError:
        return  # no file there can be read
    try:
        call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
