"""Asks a running daemon one question over its attach socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from prepserver import __version__
from prepserver.cli import exits
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import ATTACH_SOCKET, FROM_ATTACH, AskStatus, Refused
from prepserver.protocol.places import runtime_dirs
from prepserver.protocol.schema import ProtocolError

_ANSWER_S = 10.0


class AskError(exits.CommandError):
    """The daemon gave no answer; the text says why."""


def ask(runtime_dir: str | None, question: Any) -> tuple[Any, int, Path]:
    """Sends `question` and waits for the answer.

    Returns:
        The answer, the descriptor that came with it (-1 if none; the caller closes it), and the directory.

    Raises:
        AskError: No daemon, no permission, or no proper answer.
    """
    path = _find(runtime_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        # No timeout of Python's yet: with one, connect would fail at once while the daemon's queue is full.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_ANSWER_S), 0))
        try:
            sock.connect(os.fspath(path / ATTACH_SOCKET))
        except PermissionError as e:
            raise AskError(f"no permission to talk to the daemon in {path}", exits.NO_PERMISSION) from e
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as e:
            raise AskError(f"no daemon runs in {path}", exits.NO_DAEMON) from e
        except OSError as e:
            raise AskError(f"cannot reach the daemon in {path}: {e}", exits.FAILED) from e
        sock.settimeout(_ANSWER_S)
        try:
            with contextlib.suppress(ConnectionError):  # the daemon may have refused and hung up
                sock.send(encode(question))
            data, fds, _, _ = _answer(sock)
            answer = decode(data, FROM_ATTACH)
        except TimeoutError as e:
            raise AskError(f"the daemon in {path} did not answer within {_ANSWER_S:g} s", exits.FAILED) from e
        except (OSError, ProtocolError) as e:
            raise AskError(f"no proper answer from the daemon in {path}: {e}", exits.FAILED) from e
    if isinstance(answer, Refused):
        raise AskError(answer.text, exits.NO_PERMISSION if answer.code == "permission" else exits.FAILED)
    return answer, fds[0] if fds else -1, path


def _answer(sock: socket.socket) -> tuple[bytes, list[int], int, Any]:
    try:
        return socket.recv_fds(sock, MAX_MESSAGE_BYTES + 1, 4)
    except ConnectionResetError:  # reported once, before what the daemon had sent
        return socket.recv_fds(sock, MAX_MESSAGE_BYTES + 1, 4)


def ask_status(runtime_dir: str | None) -> dict[str, Any]:
    """The daemon's state.

    Raises:
        AskError: See `ask`.
    """
    answer, fd, path = ask(runtime_dir, AskStatus(__version__))
    if fd < 0:
        raise AskError(f"no proper answer from the daemon in {path}: {type(answer).__name__}", exits.FAILED)
    try:
        found: dict[str, Any] = json.loads(os.pread(fd, answer.nbytes, 0))
    finally:
        os.close(fd)
    return found


def _find(runtime_dir: str | None) -> Path:
    if runtime_dir is not None:
        return Path(runtime_dir).absolute()
    candidates = [Path(p) for p in runtime_dirs(os.environ, os.getuid())]
    return next((p for p in candidates if os.path.lexists(p / ATTACH_SOCKET)), candidates[0])
