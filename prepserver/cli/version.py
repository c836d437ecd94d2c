"""`prepserver --version`: release, commit, kernels and codecs."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prepserver import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_COMMIT = _PACKAGE / "_commit.txt"  # hatch_build.py puts it into wheels


class VersionAction(argparse.Action):
    """Prints the version and exits. argparse's own action needs the text beforehand, and making it imports torch."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        """Prints the version."""
        sys.stdout.write(f"{text()}\n")
        parser.exit()


def text() -> str:
    """One line each for the release, the kernels with their libjpeg, and the packages that decode."""
    from prepserver.transform import native

    path, why = native.path()
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pillow", "simplejpeg"))
    return (
        f"prepserver {__version__} (commit {commit()})\n"
        f"kernels: {'compiled' if path == 'native' else 'none'}, {why}\n"
        f"packages: Python {platform.python_version()}, {packages}"
    )


def commit() -> str:
    """The commit of the build or of the checkout, with a plus sign if files have changed since."""
    if _COMMIT.exists():
        return _COMMIT.read_text().strip()
    if not (_PACKAGE.parent / ".git").exists():
        return "unknown"
    try:
        command = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
        done = subprocess.run(command, cwd=_PACKAGE.parent, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
