"""The daemon's place in the file system: one directory, one lock, one socket that clients find.

The lock decides which process is the daemon of a directory. The socket cannot: binding over a live daemon's socket
would take its clients away unnoticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from prepserver.protocol.messages import ATTACH_SOCKET, LINE_SOCKET
from prepserver.protocol.places import MAX_SOCKET_PATH_BYTES, PRIVATE_LOG, runtime_dirs

_LOOK_AGAIN_S = 0.005


class RuntimeDirError(RuntimeError):
    """The directory cannot be used; the text says why and what to do."""


class AlreadyRunning(RuntimeDirError):
    """Another daemon holds the directory."""


@dataclass(frozen=True, slots=True)
class Door:
    """Who may connect to a socket that the daemon makes: its mode, and its group (None for the daemon's own)."""

    mode: int = 0o660
    group: int | None = None

    def apply_to(self, path: Path) -> None:
        """Gives the socket at `path` its group and mode; raises `OSError` if the daemon may not do that."""
        _give_to(path, self.group)
        path.chmod(self.mode)


class RuntimeDir:
    """Takes a runtime directory and locks it; `close` removes the sockets.

    Args:
        path: The directory, or None for the first usable default place.
        attach_is_ours: False if systemd has made the attach socket and keeps it.
        group: A group whose members may reach the sockets through the directory, if any.
        is_private: The directory is only for this daemon and is removed with it, unless it holds other files.
        replace: Do not fail if a daemon runs there. That one will be replaced: when it has ended, `take` locks the
            directory.

    Attributes:
        path: The directory.

    Raises:
        RuntimeDirError: It cannot be made, belongs to another user, or its path is too long for a socket.
        AlreadyRunning: A daemon runs there.
    """

    def __init__(
        self, path: Path | None = None, *, attach_is_ours: bool = True, group: int | None = None,
        is_private: bool = False, replace: bool = False,
    ) -> None:  # fmt: skip
        self.path = _make(path) if path is not None else _first_usable()
        self._attach_is_ours = attach_is_ours
        self._is_private = is_private
        _let_pass(self.path, group)
        self.attach_socket = self.path / ATTACH_SOCKET
        self.line_socket = self.path / LINE_SOCKET
        longest = max(len(os.fsencode(p)) for p in (self.attach_socket, self.line_socket))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise RuntimeDirError(
                f"runtime_dir = {self.path} is too long: a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes, "
                f"this one would have {longest}. Choose a shorter directory with --runtime-dir"
            )
        self._lock = -1
        try:
            self.take()
        except AlreadyRunning:
            if not replace:
                raise

    @property
    def is_ours(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock >= 0

    def take(self, patience_s: float = 0.0) -> None:
        """Locks the directory.

        Args:
            patience_s: How long to wait for a daemon that is about to end, or 0.

        Raises:
            AlreadyRunning: A daemon runs there.
            RuntimeDirError: The lock file cannot be opened.
        """
        until_s = time.monotonic() + patience_s
        while not self.is_ours:
            try:
                self._lock = self._locked()
            except AlreadyRunning as e:
                if time.monotonic() >= until_s:
                    raise AlreadyRunning(f"waited {patience_s:g} s, but {e}" if patience_s else str(e)) from None
                time.sleep(_LOOK_AGAIN_S)
        # A killed daemon may have left them; this process holds the lock, so no daemon listens there.
        self._remove_sockets()

    def _locked(self) -> int:
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as e:  # a link, or a file of another user
            raise RuntimeDirError(f"runtime_dir = {self.path}: its lock file cannot be opened: {e.strerror}") from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise AlreadyRunning(
                f"a prepserver daemon (pid {pid or 'unknown'}) already runs in {self.path}. Use it "
                "(`prepserver status`), stop it (`prepserver stop`), replace it (--replace), or choose another "
                "--runtime-dir"
            ) from None
        try:
            self._write_pid(fd)
        except OSError as e:  # a full disk
            os.close(fd)
            raise RuntimeDirError(f"runtime_dir = {self.path} cannot be written to: {e.strerror}") from e
        return fd

    def remove_attach_socket(self) -> None:
        """Hides the daemon from clients. If systemd made the socket, they wait in its queue for the next daemon."""
        if self._attach_is_ours and self._has_the_path():
            self.attach_socket.unlink(missing_ok=True)

    def _remove_sockets(self) -> None:
        self.remove_attach_socket()
        if self._has_the_path():
            self.line_socket.unlink(missing_ok=True)

    def _has_the_path(self) -> bool:
        """Whether the directory is still the one that this process has locked: somebody may have made another one."""
        try:
            return self.is_ours and os.path.samestat(os.fstat(self._lock), os.stat(self.path / "lock"))
        except OSError:
            return False

    def renew_pid(self) -> None:
        """Writes this process's pid into the lock file, if it holds the lock: a fork has detached it."""
        if self.is_ours:
            self._write_pid(self._lock)

    @staticmethod
    def _write_pid(fd: int) -> None:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Removes the sockets and releases the lock.

        The lock file stays, because removing it would race with the next daemon. A private directory has no next one.
        """
        if not self.is_ours:
            return
        self._remove_sockets()
        if self._is_private and self._has_the_path():
            with contextlib.suppress(OSError):
                for name in ("lock", PRIVATE_LOG):
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()
        os.truncate(self._lock, 0)
        os.close(self._lock)
        self._lock = -1


def holder(path: Path) -> int | None:
    """The process that has locked a runtime directory; None if no process of this user has.

    It does not try the lock, which a daemon may be about to take.
    """
    with contextlib.suppress(OSError, ValueError):
        lock = path / "lock"
        pid, status = int(lock.read_text()), lock.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.stat(f"/proc/{pid}").st_uid:
            return None  # a link to the file of another program
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), status):
                    return pid
    return None


def said_in_lock(path: Path) -> str:
    """What the lock file of a runtime directory says: the daemon's pid; nothing once that has ended in good order."""
    try:
        return (path / "lock").read_text()
    except OSError:  # a private one is removed
        return ""


def _first_usable() -> Path:
    refused = []
    for candidate in runtime_dirs(os.environ, os.getuid()):
        try:
            return _make(Path(candidate))
        except RuntimeDirError as e:
            refused.append(str(e))
    raise RuntimeDirError("no usable runtime directory: " + "; ".join(refused))


def _give_to(path: Path, group: int | None) -> None:
    # Without chown if it has the group already (the daemon's own, or a setgid directory): a sandbox may deny chown.
    if group is not None and path.stat().st_gid != group:
        os.chown(path, -1, group)


def _let_pass(path: Path, group: int | None) -> None:
    if group is None or path.stat().st_mode & 0o001:
        return
    try:
        _give_to(path, group)
        if not path.stat().st_mode & 0o010:  # chmod by an owner outside the group clears setgid, so only if needed
            path.chmod(path.stat().st_mode & 0o7777 | 0o010)
    except OSError as e:
        raise RuntimeDirError(
            f"runtime_dir = {path} cannot be given to group {group}: {e.strerror}. The daemon's user must be in "
            "socket_group; where chown is denied, give the directory that group and the setgid bit"
        ) from e


def _make(path: Path) -> Path:
    path = path.absolute()
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        # Another user may have put a link or a directory of this name under /tmp.
        info = path.lstat()
    except OSError as e:
        raise RuntimeDirError(f"runtime_dir = {path}: {e.strerror}") from e
    if not stat.S_ISDIR(info.st_mode):
        what = "is a link: name the directory itself" if stat.S_ISLNK(info.st_mode) else "is not a directory"
        raise RuntimeDirError(f"runtime_dir = {path} {what}")
    if info.st_uid != os.getuid():
        raise RuntimeDirError(f"runtime_dir = {path} belongs to uid {info.st_uid}, not to you (uid {os.getuid()})")
    if info.st_mode & 0o002:
        raise RuntimeDirError(
            f"runtime_dir = {path} is writable for everybody; `chmod o-w` it, or name a new folder in it"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise RuntimeDirError(f"runtime_dir = {path} is not writable")
    return path
