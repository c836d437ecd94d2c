"""Builds the optional compiled kernels: as hatchling's build hook, or by hand, ``python hatch_build.py``.

Needs a C compiler ($CC, else cc) and libjpeg-turbo's headers, takes seconds, and reaches for no network. Without
them, or if compiling fails, the wheel is a pure one, which does the same work more slowly: an install never fails
for this. The environment's PREPSERVER_NATIVE says otherwise: 0 does not try, 1 fails where it cannot.

The result stands beside its sources in the checkout, so an editable install and a checkout on PYTHONPATH have it. A
wheel gets it only if it was made of these sources by the compiler, with the flags and for the C library of the
environment that the wheel is built in. It uses no CPython API: one wheel for a platform serves every Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, in an environment without hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]

FOLDER = Path("prepserver/transform/native")
LIBRARY = "_native.so"
NOT_BUILT = "_not_built.txt"  # why there is none, for `prepserver status`
# Contracted products and sums round otherwise than torch's resize does, which the kernels are to equal.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC", "-shared", "-pthread"]


class NotBuilt(Exception):
    """There is no library, and why."""


def build(root: Path) -> Path:
    """Compile the kernels of the checkout at `root`, unless what is there was made of the same by the same.

    Raises:
        NotBuilt: No compiler, no headers, or it says no.
    """
    folder = root / FOLDER
    note, target = folder / NOT_BUILT, folder / LIBRARY
    try:
        _compile(folder, target)
    except NotBuilt as error:
        with contextlib.suppress(OSError):
            note.write_text(f"{error}\n")
        raise
    note.unlink(missing_ok=True)
    return target


def _compile(folder: Path, target: Path) -> None:
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        raise NotBuilt(f"no C compiler ({compiler[0]})")
    sources = sorted(folder.glob("*.c"))
    source = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(folder.glob("*.[ch]")))).hexdigest()[:16]
    flags = [*FLAGS, *_headers()]
    maker = [source, *compiler, _said([*compiler, "--version"]), _said([*compiler, "-dumpmachine"]), *flags]
    maker += [platform.machine(), *platform.libc_ver()]
    digest = hashlib.sha256("\0".join(maker).encode()).hexdigest()[:16]
    if target.exists() and digest.encode() in target.read_bytes():
        return
    flags += [f'-DPREP_SOURCE="{source}"', f'-DPREP_BUILD="{digest}"']
    try:
        with tempfile.TemporaryDirectory(dir=folder) as made:
            # Put in place whole: a worker may be loading the old one.
            command = [*compiler, *flags, "-o", f"{made}/{LIBRARY}", *map(str, sources), "-ldl", "-lm"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if result.returncode:
                lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no message"]
                raise NotBuilt(lines[0])
            os.replace(f"{made}/{LIBRARY}", target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(str(error)) from error


def _said(command: list[str]) -> str:
    """Return what it writes; nothing if it cannot."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _headers() -> list[str]:
    """Return where the headers are, if pkg-config knows of a place that compilers do not look into anyway."""
    if shutil.which("pkg-config") is None:
        return []
    result = subprocess.run(["pkg-config", "--cflags", "libjpeg"], capture_output=True, text=True, check=False)
    return shlex.split(result.stdout) if result.returncode == 0 else []


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
    """Hatchling's custom build hook: puts the library into the wheel, and the platform into the wheel's name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the wheel is put together."""
        wish = os.environ.get("PREPSERVER_NATIVE", "")
        if self.target_name != "wheel" or wish == "0":
            return
        try:
            library = build(Path(self.root))
        except NotBuilt as error:
            if wish == "1":
                raise
            note = f"prepserver is installed without its compiled kernels, at half the speed: {error}"
            self.app.display_warning(note)
            _tell(note)
            why = Path(self.root) / FOLDER / NOT_BUILT
            if version != "editable" and why.exists():
                build_data["force_include"][str(why)] = str(FOLDER / NOT_BUILT)
            return
        if version != "editable":
            build_data["force_include"][str(library)] = str(FOLDER / LIBRARY)
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


def _tell(note: str) -> None:
    """Say it on the terminal where what a build says is kept back: pip shows it with -v only, or if a build fails."""
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{note}\n")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build(Path(__file__).resolve().parent)}\n")
    except NotBuilt as error:
        sys.exit(f"not built: {error}")
