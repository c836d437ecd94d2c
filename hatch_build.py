"""Builds the optional compiled kernels: as hatchling's build hook, or by hand, ``python hatch_build.py``.

Needs a C compiler ($CC, else cc), takes seconds, and reaches for no network. Without one, or if compiling fails, the
wheel is a pure one, which does the same work more slowly: an install never fails for this. Two variables say otherwise:

PREPSERVER_NATIVE: 0 does not try, 1 fails where it cannot.
PREPSERVER_PLATFORM: the platform in the wheel's name, such as manylinux_2_17_aarch64, where $CC compiles for another
    machine or an older C library than this one's; see `make wheels`.

A wheel also gets the completions of bash and fish, and the man page where argparse-manpage is installed, in the folders
where shells and man look for them: made of the parser of the command line, so that they say what it takes.

The kernels stand beside their sources in the checkout, so an editable install and a checkout on PYTHONPATH have it. A
wheel gets it only if it was made of these sources by the compiler, with the flags and for the C library of the
environment that the wheel is built in. It uses no CPython API: one wheel for a platform serves every Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
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
PAGES = "build/share"
NOT_BUILT = "_not_built.txt"  # why there is none, for `prepserver status`
COMMIT = "_commit.txt"
# Contracted products and sums round otherwise than torch's resize does, which the kernels are to equal.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC", "-shared", "-pthread"]


class NotBuilt(Exception):
    """There is no library, and why."""


def build(root: Path, platform_tag: str = "") -> Path:
    """Compile the kernels of the checkout at `root`, unless what is there was made of the same by the same.

    Args:
        root: The checkout.
        platform_tag: The platform that the compiler makes them for, if it is not this machine: they are then no use in
            the checkout and lie in build/.

    Raises:
        NotBuilt: No compiler, or it says no.
    """
    folder = root / FOLDER
    note, target = folder / NOT_BUILT, folder / LIBRARY
    if platform_tag:
        target = root / "build" / platform_tag / LIBRARY
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _compile(folder, target, platform_tag)
    except NotBuilt as error:
        with contextlib.suppress(OSError):
            note.write_text(f"{error}\n")
        raise
    note.unlink(missing_ok=True)
    return target


def _compile(folder: Path, target: Path, platform_tag: str) -> None:
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        raise NotBuilt(f"no C compiler ({compiler[0]})")
    sources = sorted(folder.glob("*.c"))
    source = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(folder.rglob("*.[ch]")))).hexdigest()[:16]
    maker = [source, *compiler, _said([*compiler, "--version"]), _said([*compiler, "-dumpmachine"]), *FLAGS]
    maker += [platform_tag] if platform_tag else [platform.machine(), *platform.libc_ver()]
    digest = hashlib.sha256("\0".join(maker).encode()).hexdigest()[:16]
    if target.exists() and digest.encode() in target.read_bytes():
        return
    flags = [*FLAGS, f'-DPREP_SOURCE="{source}"', f'-DPREP_BUILD="{digest}"']
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
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


def pages(root: Path) -> Path:
    """Write what belongs into share/ of a prefix: the completions, and the man page if argparse-manpage is there."""
    share = root / PAGES
    shutil.rmtree(share, ignore_errors=True)
    commands = {
        "bash-completion/completions/prepserver": ["-m", "prepserver", "completion", "bash"],
        "fish/vendor_completions.d/prepserver.fish": ["-m", "prepserver", "completion", "fish"],
    }
    if importlib.util.find_spec("argparse_manpage"):
        commands["man/man1/prepserver.1"] = [
            *("-c", "from argparse_manpage.cli import main; main()", "--module=prepserver.cli"),
            *("--function=command_line", "--format=single-commands-section", "--project-name=prepserver"),
            *("--description=a preprocessing daemon for GPU machines", "--manual-title=prepserver"),
            f"--include={root / 'deploy/man-sections'}",
        ]
    # The same bytes on every machine: hatchling's own date where none is asked for, and lines of one width.
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    fixed = {"SOURCE_DATE_EPOCH": "1580601600", **os.environ, "TZ": "UTC", "COLUMNS": "72", "PYTHONPATH": path}
    for place, command in commands.items():
        command = [sys.executable, "-B", *command]
        text = subprocess.run(command, env=fixed, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
        if place.startswith("man/"):  # argparse-manpage leaves a help text's line like that, which is none of a page's
            text = re.sub(r"^(?='|\.[^A-Z])", r"\\&", text, flags=re.MULTILINE)
        (share / place).parent.mkdir(parents=True)
        (share / place).write_text(text)
    return share


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
    """Hatchling's custom build hook: puts library, commit and pages into a wheel, and the platform into its name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the wheel is put together."""
        wish, wanted = os.environ.get("PREPSERVER_NATIVE", ""), os.environ.get("PREPSERVER_PLATFORM", "")
        if version != "editable" and (commit := _commit(Path(self.root))):
            build_data["force_include"][str(commit)] = f"prepserver/{COMMIT}"
        if self.target_name != "wheel":
            return
        if version != "editable":
            build_data["shared_data"][str(pages(Path(self.root)))] = "share"
        if wish == "0":
            return
        try:
            library = build(Path(self.root), wanted)
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
            platform = wanted or sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


def _commit(root: Path) -> Path | None:
    """Write the commit of a checkout, for `prepserver --version`; a source archive has it already.

    That file is named here, too: files named have their own place in an archive, and its bytes are to be the same.
    """
    if not (root / ".git").exists():
        file = root / "prepserver" / COMMIT
        return file if file.exists() else None
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    file = root / "build" / COMMIT
    file.parent.mkdir(exist_ok=True)
    file.write_text(_said(describe) or "unknown\n")
    return file


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
