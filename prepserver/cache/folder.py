"""Caches on disk: one file each, in a folder that the configuration allows.

Clients name the folder. So nothing is written unless each part of its path belongs to the daemon's user or root, and
nobody else can change it. A process that uses a cache holds a shared lock on its file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Collection, Sequence

from prepserver.cache.store import Shape, has_numbers, write_numbers

_SUFFIX = ".cache"


class FolderError(Exception):
    """The folder cannot hold a cache; the text says why, and what to do."""


class NoFolder(FolderError):
    """There is no such folder."""


def open_folder(path: str, allowed: Sequence[str], make: bool = False) -> int:
    """Open a folder below one of the `allowed` ones; with `make`, create it with mode 0700 if it is missing.

    The caller owns the descriptor.

    Raises:
        NoFolder: It is missing, and `make` is False.
        FolderError: It lies elsewhere, or others than this user and root could write there.
    """
    real = os.path.realpath(path)
    roots = [os.path.realpath(folder) for folder in allowed]
    if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
        where = f"only below {', '.join(allowed)}" if allowed else "nowhere"
        raise FolderError(
            f"cache = {path}: this daemon keeps caches on disk {where}. Its operator names folders as "
            'folders = ["/var/cache/prepserver"] under [cache] in its --config, or with --cache-folder'
        )
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here, at = os.open("/", flags), "/"
    try:
        for name in filter(None, real.split("/")):
            at = os.path.join(at, name)
            if make and not os.access(name, os.F_OK, dir_fd=here):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=here)
            there = os.open(name, flags, dir_fd=here)
            os.close(here)
            here = there
            _check_owner(path, at, os.fstat(here), is_last=at == real)
    except FileNotFoundError as error:
        os.close(here)
        raise NoFolder(
            f"cache = {path}: there is no folder {at}, and the daemon makes one only for its own user (uid "
            f"{os.geteuid()}) and root: ask its operator to make it, or name one that exists"
        ) from error
    except OSError as error:
        os.close(here)
        raise FolderError(f"cache = {path}: {f'{at}: ' * (at != path)}{error.strerror}") from error
    except FolderError:
        os.close(here)
        raise
    return here


def _check_owner(path: str, at: str, status: os.stat_result, is_last: bool) -> None:
    mine = os.geteuid()
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    if status.st_uid not in ((mine,) if is_last else (0, mine)):
        raise FolderError(f"cache = {path}: {at} belongs to uid {status.st_uid}; the daemon's uid is {mine}: chown it")
    if status.st_mode & 0o022 and (is_last or not is_sticky):
        advice = "name a new folder in it" if is_last and is_sticky else f"chmod go-w {at}"
        raise FolderError(f"cache = {path}: users other than the daemon's may write to {at}: {advice}")


def open_file(folder: int, name: str, shape: Shape, key: bytes) -> int:
    """Open the file of a cache, emptied first if it belongs to another cache; the caller owns the descriptor.

    The `name` has no suffix; the `key` identifies the content.

    Raises:
        OSError: It cannot be made, or there is no space for its table.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name + _SUFFIX, flags, 0o600, dir_fd=folder)
    try:
        with contextlib.suppress(BlockingIOError):  # another daemon uses it
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not has_numbers(fd, shape, key):
                os.ftruncate(fd, 0)
                # Workers map the table: a page without space on the disk would kill them.
                os.posix_fallocate(fd, 0, shape.head_bytes)
                write_numbers(fd, shape, key)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not has_numbers(fd, shape, key):
            raise OSError(errno.EBUSY, "another daemon uses the file for something else")
        os.utime(fd)  # when it was last used
    except OSError:
        os.close(fd)
        raise
    return fd


def held_bytes(folder: int, but: Collection[str] = ()) -> int:
    """Return the bytes on disk of all caches in a folder, except those named in `but`."""
    return sum(size for _, size, name in _files(folder) if name.removesuffix(_SUFFIX) not in but)


def make_room(folder: int, but: str, budget_bytes: int) -> None:
    """Remove caches that no process uses, the longest unused first, until a quarter of the budget is free.

    The cache named `but` stays.
    """
    files = _files(folder)
    total = sum(size for _, size, _ in files)
    for _, size, name in sorted(files):
        if total <= budget_bytes * 3 // 4:
            return
        if name != but + _SUFFIX and _remove_unused(folder, name):
            total -= size


def _files(folder: int) -> list[tuple[int, int, str]]:
    """Return (time of last use, bytes on disk, name) of each cache."""
    found = []
    with os.scandir(folder) as entries:
        for each in entries:
            if each.name.endswith(_SUFFIX) and each.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # another daemon has made room just now
                    status = each.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, 512 * status.st_blocks, each.name))
    return found


def _remove_unused(folder: int, name: str) -> bool:
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
