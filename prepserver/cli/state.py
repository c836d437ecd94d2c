"""Finds the folder of a daemon's quarantine and jobs' logs, which outlive the daemon."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from prepserver.cli.ask import AskError, ask_status
from prepserver.cli.exits import USAGE, CommandError
from prepserver.config import user_cache_dir


def state_dir_of(cache_dir: str, environ: Mapping[str, str]) -> Path:
    """`cache_dir` if it is given, else systemd's state directory for this unit, else the user's cache."""
    if cache_dir:
        return Path(cache_dir).absolute()
    given = environ.get("STATE_DIRECTORY")
    return Path(given.split(":")[0]) if given else user_cache_dir()


def find_state_dir(arguments: argparse.Namespace) -> Path:
    """`arguments.cache_dir` if given, else the running daemon's folder, else the default for this user.

    Raises:
        CommandError: `arguments.cache_dir` does not exist.
    """
    if arguments.cache_dir is None:
        try:
            return Path(ask_status(arguments.runtime_dir)["state_dir"])
        except (AskError, KeyError):  # an older daemon does not report it
            return state_dir_of("", os.environ)
    found = state_dir_of(arguments.cache_dir, os.environ)
    if not found.is_dir():
        raise CommandError(f"--cache-dir {arguments.cache_dir}: no such folder", USAGE)
    return found
