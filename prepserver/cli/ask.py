"""Asks the running daemon a question."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prepserver.cli import exits
from prepserver.daemon import ask as daemon_ask
from prepserver.daemon.runtime_dir import holder
from prepserver.protocol.messages import ATTACH_SOCKET, AskStatus, AskStop, Refused
from prepserver.protocol.places import trusted_dirs

_ANSWER_S = 10.0


class AskError(exits.CommandError):
    """The daemon gave no answer; the text says why."""


def ask(runtime_dir: str | None, asked: AskStatus | AskStop, answer_s: float = _ANSWER_S) -> tuple[Any, Path]:
    """Sends a question and waits for the answer, for `answer_s` at most.

    Returns:
        The answer, see `prepserver.daemon.ask`, and the runtime directory.

    Raises:
        AskError: No daemon runs, this user may not ask it, or its answer is late or invalid.
    """
    path = _find(runtime_dir)
    try:
        answer = daemon_ask.ask(path / ATTACH_SOCKET, asked, answer_s)
    except PermissionError as e:
        raise AskError(f"no permission to talk to the daemon in {path}", exits.NO_PERMISSION) from e
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
        raise AskError(f"the daemon in {path} did not answer within {answer_s:g} s", exits.FAILED) from e
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


def _find(runtime_dir: str | None) -> Path:
    if runtime_dir is not None:
        return Path(runtime_dir).absolute()
    candidates = [Path(p) for p in trusted_dirs(os.environ, os.getuid(), os.stat)]
    return next((p for p in candidates if os.path.lexists(p / ATTACH_SOCKET)), candidates[0])
