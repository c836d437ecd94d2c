"""Finds the folder of a daemon's quarantine and jobs' logs, which outlive the daemon."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from prepserver.cli.ask import AskError, ShutPlace, ask_status
from prepserver.cli.exits import NO_DAEMON, USAGE, CommandError
from prepserver.config import user_cache_dir
from prepserver.protocol.places import is_named


def state_dir_of(cache_dir: str, environ: Mapping[str, str]) -> Path:
    """`cache_dir` if it is given, else systemd's state directory for this unit, else the user's cache."""
    if cache_dir:
        return Path(cache_dir).absolute()
    given = environ.get("STATE_DIRECTORY")
    return Path(given.split(":")[0]) if given else user_cache_dir()


def find_state_dir(arguments: argparse.Namespace, *, to_change: bool = False, must_answer: bool = False) -> Path:
    """`arguments.cache_dir` if given, else the running daemon's folder, else the default for this user.

    Without an answer from a daemon that the user has named, it says on stderr which folder it is; with `to_change` it
    refuses, because that would be the folder of another daemon. With `must_answer`, a daemon that is there must do so.

    Raises:
        CommandError: `arguments.cache_dir` does not exist, or the folder is another daemon's or may be.
    """
    if arguments.cache_dir is not None:
        found = state_dir_of(arguments.cache_dir, os.environ)
        if not found.is_dir():
            raise CommandError(f"--cache-dir {arguments.cache_dir}: no such folder", USAGE)
        return found
    why: CommandError
    try:
        return Path(ask_status(arguments.runtime_dir)["state_dir"])
    except KeyError:
        why = CommandError("the daemon is of an older release, and does not name its folder")
    except AskError as e:
        if (to_change or must_answer) and e.code != NO_DAEMON and not isinstance(e, ShutPlace):
            raise
        why = e
    found = state_dir_of("", os.environ)
    if why.code == NO_DAEMON and not is_named(arguments.runtime_dir, os.environ):
        return found
    if to_change:
        start = "start it, or " if why.code == NO_DAEMON else ""
        raise CommandError(
            f"{why}. Nothing is changed: {start}name the folder that it uses with --cache-dir (that of this user is "
            f"{found})",
            why.code,
        )
    sys.stderr.write(f"prepserver {arguments.command}: {why}. This reads {found} (--cache-dir names another folder)\n")
    return found
