"""Where a daemon keeps what outlives it: the quarantine and the jobs' logs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from prepserver.cli.ask import AskError, ask_status
from prepserver.config import user_cache_dir


def state_dir_of(cache_dir: str, environ: Mapping[str, str]) -> Path:
    """A given cache directory itself, else systemd's directory for our state, else the user's cache."""
    if cache_dir:
        return Path(cache_dir).absolute()
    given = environ.get("STATE_DIRECTORY")
    return Path(given.split(":")[0]) if given else user_cache_dir()


def find_state_dir(arguments: argparse.Namespace) -> Path:
    """As the arguments say, else as the daemon says that runs, else where one of this user's would keep it.

    Args:
        arguments: With `cache_dir` and `runtime_dir`.
    """
    if arguments.cache_dir is None:
        try:
            return Path(ask_status(arguments.runtime_dir)["state_dir"])
        except (AskError, KeyError):  # an older daemon does not say
            return state_dir_of("", os.environ)
    return state_dir_of(arguments.cache_dir, os.environ)
