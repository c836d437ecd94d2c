"""Builds the optional compiled kernels: as hatchling's build hook, or by hand, ``python hatch_build.py``.

It needs a C compiler ($CC, else cc), takes seconds, and uses no network. Without a compiler, or if compiling fails, the
wheel is pure Python and does the same work more slowly: an install never fails for this. Two variables change that:

PREPSERVER_NATIVE: 0 builds no kernels; with 1, a failed build is an error.
PREPSERVER_PLATFORM: the platform in the wheel's name, such as manylinux_2_17_aarch64, if $CC compiles for another
    machine or an older C library; see `make wheels`.

A wheel also gets completions for bash and fish and, if argparse-manpage is installed, the man page, in the folders
where shells and man look for them. All are generated from the parser of the command line.

The library lies beside its sources in the checkout, so an editable install and a checkout on PYTHONPATH use it. It is
rebuilt if the sources, the compiler, the flags or the C library have changed. It uses no CPython API, so one wheel per
platform serves every Python.
"""

from __future__ import annotations

import argparse
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
NOT_BUILT = "_not_built.txt"  # why there is no library, for `prepserver status`
COMMIT = "_commit.txt"
# Without contraction of products and sums, because the kernels must round as torch's resize does.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC", "-shared", "-pthread"]


class NotBuilt(Exception):
    """The library cannot be built; the text says why."""


def build(root: Path, platform_tag: str = "") -> Path:
    """Compile the kernels of the checkout at `root`, unless the library there is up to date; return its path.

    Args:
        root: The checkout.
        platform_tag: The platform that the compiler targets, if that is not this machine: the library is then of no use
            in the checkout, and goes to build/.

    Raises:
        NotBuilt: There is no compiler, or it fails.
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
    maker = [source, *compiler, _output([*compiler, "--version"]), _output([*compiler, "-dumpmachine"]), *FLAGS]
    maker += [platform_tag] if platform_tag else [platform.machine(), *platform.libc_ver()]
    digest = hashlib.sha256("\0".join(maker).encode()).hexdigest()[:16]
    if target.exists() and digest.encode() in target.read_bytes():
        return
    flags = [*FLAGS, f'-DPREP_SOURCE="{source}"', f'-DPREP_BUILD="{digest}"']
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            # Replaced atomically: a worker may be loading the old one.
            command = [*compiler, *flags, "-o", f"{made}/{LIBRARY}", *map(str, sources), "-ldl", "-lm"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if result.returncode:
                lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no message"]
                raise NotBuilt(lines[0])
            os.replace(f"{made}/{LIBRARY}", target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(str(error)) from error


def _output(command: list[str]) -> str:
    """Return what a command writes to stdout; an empty text if it cannot run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def manual() -> argparse.ArgumentParser:
    """Return the parser of the command line, with notes and examples where argparse-manpage finds them."""
    from prepserver.cli import command_line, exits

    parser = command_line()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for part in command.epilog.removesuffix(exits.EPILOG).strip().split("\n\n"):
            command.description += f"\n\n.EX\n{part}\n.EE" if part.startswith("example") else f"\n\n{part}"
    return parser


def pages(root: Path) -> Path:
    """Write the files for share/ of a prefix: completions, and the man page if argparse-manpage is installed."""
    share = root / PAGES
    shutil.rmtree(share, ignore_errors=True)
    commands = {
        "bash-completion/completions/prepserver": ["-m", "prepserver", "completion", "bash"],
        "fish/vendor_completions.d/prepserver.fish": ["-m", "prepserver", "completion", "fish"],
    }
    if importlib.util.find_spec("argparse_manpage"):
        commands["man/man1/prepserver.1"] = [
            *("-c", "from argparse_manpage.cli import main; main()", "--module=hatch_build"),
            *("--function=manual", "--format=single-commands-section", "--project-name=prepserver"),
            *("--description=a preprocessing daemon for GPU machines", "--manual-title=prepserver"),
            f"--include={root / 'deploy/man-sections'}",
        ]
    # The same bytes on every machine: hatchling's default date, and a fixed line width.
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    fixed = {"SOURCE_DATE_EPOCH": "1580601600", **os.environ, "TZ": "UTC", "COLUMNS": "72", "PYTHONPATH": path}
    for place, command in commands.items():
        command = [sys.executable, "-B", *command]
        text = subprocess.run(command, env=fixed, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
        if place.startswith("man/"):  # argparse-manpage does not escape lines of help texts that begin like a request
            text = re.sub(r"^(?='|\.[^A-Z])", r"\\&", text, flags=re.MULTILINE)
        (share / place).parent.mkdir(parents=True)
        (share / place).write_text(text)
    return share


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
    """Hatchling's custom build hook: puts library, commit and pages into a wheel, and the platform into its name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the wheel is assembled."""
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
            _show(note)
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
    """Write the commit of a checkout, for `prepserver --version`, and return the path; a source archive has the file.

    It is returned there, too, so that an archive built from it lists the same files in the same order.
    """
    if not (root / ".git").exists():
        file = root / "prepserver" / COMMIT
        return file if file.exists() else None
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    file = root / "build" / COMMIT
    file.parent.mkdir(exist_ok=True)
    file.write_text(_output(describe) or "unknown\n")
    return file


def _show(note: str) -> None:
    """Write to the terminal even if the build's output is captured: pip shows it only with -v or after a failure."""
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{note}\n")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build(Path(__file__).resolve().parent)}\n")
    except NotBuilt as error:
        sys.exit(f"not built: {error}")
