"""Asks the running daemon a question."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver.cli import exits
from prepserver.daemon import ask as daemon_ask
from prepserver.daemon.runtime_dir import holder
from prepserver.protocol.messages import ATTACH_SOCKET, AskLogs, AskStatus, AskStop, Refused
from prepserver.protocol.places import dir_to_ask, is_named, why_refused

_ANSWER_S = 10.0


class AskError(exits.CommandError):
    """The daemon gave no answer; the text says why."""


class ShutPlace(AskError):
    """This user may not enter the usual place, so nobody knows whether a daemon runs there."""


def ask(
    runtime_dir: str | None, asked: AskStatus | AskStop | AskLogs, answer_s: float = _ANSWER_S,
    meet: Callable[[socket.socket], None] = lambda _line: None,
) -> tuple[Any, Path]:  # fmt: skip
    """Sends a question and waits for the answer, for `answer_s` at most; `meet` as in `prepserver.daemon.ask`.

    Returns:
        The answer, see `prepserver.daemon.ask`, and the runtime directory.

    Raises:
        AskError: No daemon runs, this user may not ask it, or its answer is late or invalid.
    """
    path = Path(dir_to_ask(runtime_dir, os.environ, os.getuid(), ATTACH_SOCKET, os.stat)).absolute()
    try:
        answer = daemon_ask.ask(path / ATTACH_SOCKET, asked, answer_s, meet)
    except PermissionError as e:
        is_shut = not is_named(runtime_dir, os.environ) and not os.access(path, os.X_OK)
        why = why_refused(os.fspath(path), ATTACH_SOCKET, os.stat)
        raise (ShutPlace if is_shut else AskError)(
            f"no permission to talk to a daemon in {path}: {why}", exits.NO_PERMISSION
        ) from e
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as e:
        pid = holder(path)
        if pid is None:
            raise AskError(f"no daemon runs in {path}", exits.NO_DAEMON) from e
        raise AskError(
            f"the daemon in {path} (pid {pid}) does not listen: it is starting, or about to end, or somebody has "
            f"removed its socket. If that lasts, `kill {pid}` ends it",
            exits.NO_DAEMON,
        ) from e
    except (TimeoutError, BlockingIOError) as e:  # no answer, or a full queue of connections
        pid, text = holder(path), f"the daemon in {path} did not answer within {answer_s:g} s"
        if pid is not None:
            text += f": it hangs or is stopped. If that lasts, `kill {pid}` ends it, or else `kill -9 {pid}`"
        else:  # systemd may hold the socket for a daemon that cannot start
            text += ". If systemd starts it, `systemctl status prepserver.service` says more"
        raise AskError(text, exits.FAILED) from e
    except (OSError, ValueError) as e:
        raise AskError(f"the daemon in {path} gave no valid answer: {e}", exits.FAILED) from e
    if isinstance(answer, Refused):
        raise AskError(answer.text, exits.NO_PERMISSION if answer.code == "permission" else exits.FAILED)
    return answer, path


def ask_status(runtime_dir: str | None, answer_s: float = _ANSWER_S) -> dict[str, Any]:
    """The daemon's state.

    Raises:
        AskError: See `ask`.
    """
    found: dict[str, Any] = ask(runtime_dir, AskStatus(), answer_s)[0]
    return found
