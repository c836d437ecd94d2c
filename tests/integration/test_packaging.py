"""What is installed, and which modules an import loads."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from prepserver.cli import command_line, exits
from tests.support.server import environment
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
NATIVE = "prepserver/transform/native"


def checkout(folder: Path) -> Path:
    """A copy of this one, without its .gitignore, as a container's build sees it."""
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.so", "dist", "build"))
    return copy


def built(copy: Path, kind: str = "wheel", **environment: str) -> Path:
    """The one that hatchling builds of it."""
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    made = copy / "dist"
    shutil.rmtree(made, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(made)],
        cwd=copy, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = made.iterdir()
    return file


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A C compiler that does not optimize."""
    compiler = tmp_path_factory.mktemp("compiler") / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    return str(compiler)


def test_a_wheel_without_kernels_has_none_and_the_build_says_so(tmp_path: Path) -> None:
    """Must reach the terminal: pip hides what a build writes to stdout and stderr. The checkout has no earlier
    build."""
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    copy = checkout(tmp_path)
    (copy / NATIVE / "stray.so").write_bytes(b"another environment's")
    code = f"import pty; pty.spawn(['sh', '-c', '{sys.executable} -m hatchling build -t wheel >log 2>&1'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env={**os.environ, "CC": "no-such-compiler"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip().splitlines() == [
        "prepserver is installed without its compiled kernels, at half the speed: no C compiler (no-such-compiler)"
    ]
    (wheel,) = (copy / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == []
        assert "no-such-compiler" in archive.read(f"{NATIVE}/_not_built.txt").decode()
    with tarfile.open(built(copy, "sdist")) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert "hatch_build.py" in names
    assert {name for name in names if name.endswith((".so", "_not_built.txt"))} == set()


def test_a_build_is_used_again_only_if_the_same_compiler_made_it(tmp_path: Path, quick: str) -> None:
    compiler, copy = tmp_path / "cc", checkout(tmp_path)
    library = copy / NATIVE / "_native.so"
    library.unlink(missing_ok=True)
    made = []
    for version in ("1", "1", "2"):
        compiler.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo {version}; else exec {quick} "$@"; fi\n')
        compiler.chmod(0o755)
        subprocess.run(
            [sys.executable, "hatch_build.py"], cwd=copy, env={**os.environ, "CC": str(compiler)}, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        made.append(library.stat().st_ino)
    assert made[0] == made[1]
    assert made[1] != made[2]


def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path, quick: str) -> None:
    copy = checkout(tmp_path)
    (copy / "client" / "stray.txt").write_text("not for the wheel")
    wheel = built(copy, CC=quick)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    info = next(top for top in tops if top.endswith(".dist-info"))
    data = info.replace(".dist-info", ".data")
    assert tops == {"prepserver", "prepclient", info, data}
    shared = {name.removeprefix(f"{data}/data/share/") for name in names if name.startswith(data)}
    assert shared - {"man/man1/prepserver.1"} == {
        "bash-completion/completions/prepserver",
        "fish/vendor_completions.d/prepserver.fish",
    }
    wanted = {f"prepserver/{p.relative_to(ROOT / 'prepserver')}" for p in (ROOT / "prepserver").rglob("*.py")}
    wanted |= {f"prepclient/{p.relative_to(ROOT / 'client/prepclient')}" for p in (ROOT / "client").rglob("*.py")}
    assert wanted <= set(names)
    assert f"{info}/licenses/LICENSE" in names
    assert {name for name in names if name.endswith((".pyc", ".txt")) and info not in name} == set()
    assert f"{NATIVE}/libjpeg/README.ijg" in names  # its licence asks that it goes along

    # Both names can be imported from it, away from the checkout.
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    env = {**environment(), "PYTHONPATH": str(target)}
    code = "import prepserver, prepclient; print(prepserver.__file__, prepclient.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    assert found.stdout.split() == [f"{target}/prepserver/__init__.py", f"{target}/prepclient/__init__.py"]


def test_a_wheel_for_another_platform_leaves_the_checkout_alone(tmp_path: Path, quick: str) -> None:
    copy = checkout(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "a"], cwd=copy, check=True)
    wheel = built(copy, PREPSERVER_PLATFORM="manylinux_2_17_x86_64", PREPSERVER_NATIVE="1", CC=quick)
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    assert not (copy / NATIVE / "_native.so").exists()
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)

    # Where there is neither a compiler nor git.
    said = subprocess.run(
        [sys.executable, "-m", "prepserver", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**environment(), "PYTHONPATH": str(target), "PATH": ""}, timeout=PATIENCE_S,
    ).stdout  # fmt: skip
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=copy, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert f"(commit {head[:10]}" in said
    assert "\nkernels: compiled, " in said


def parsers() -> dict[str, argparse.ArgumentParser]:
    """That of every command."""
    (sub,) = (a for a in command_line()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(sub.choices)


def commands() -> dict[str, set[str]]:
    """The options of every command that --help shows."""
    return {
        name: {flag for a in p._actions if a.help != argparse.SUPPRESS for flag in a.option_strings} - {"-h", "--help"}
        for name, p in parsers().items()
    }


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this checkout puts into share/."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("prepserver", "deploy", "hatch_build.py"):
        (root / name).symlink_to(ROOT / name)
    code = "import hatch_build, pathlib; hatch_build.pages(pathlib.Path().absolute())"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=PATIENCE_S)
    return root / "build" / "share"


def test_the_man_page_has_every_command_and_option(share: Path) -> None:
    pytest.importorskip("argparse_manpage", reason="the man page needs argparse-manpage")
    page = (share / "man/man1/prepserver.1").read_text()
    assert [
        line for line in page.splitlines() if line.startswith("'") or re.match(r"\.(?![A-Z]{1,2}( |$))", line)
    ] == []
    sections = dict(re.findall(r"^\.SS \\fBprepserver (\S+)\\fR\n(.*?)(?=^\.S[SH])", page, re.MULTILINE | re.DOTALL))
    found = {name: set(re.findall(r"\\fB(-\S+?)\\fR", text.replace("\\-", "-"))) for name, text in sections.items()}
    assert found == commands()
    for name, command in parsers().items():
        notes = str(command.epilog).removesuffix(exits.EPILOG).strip()
        assert notes in sections[name].replace("\\-", "-").replace(".EX\n", "").replace("\n.EE", ""), name
    if shutil.which("man"):
        done = subprocess.run(
            ["man", "--warnings", "-l", str(share / "man/man1/prepserver.1")],
            env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr == ""


def test_the_completions_have_every_command_and_option(share: Path) -> None:
    bash = (share / "bash-completion/completions/prepserver").read_text()
    words = {name: set(found.split()) for name, found in re.findall(r"'(\S+) '\*\) words='(.*)' ;;", bash)}
    fish = (share / "fish/vendor_completions.d/prepserver.fish").read_text()
    for name, options in commands().items():
        assert options <= words[name]
        lines = [line for line in fish.splitlines() if f"__fish_seen_subcommand_from {name}'" in line]
        pairs = [pair for line in lines for pair in re.findall(r" -([ls]) (\S+)", line)]
        assert options <= {("--" if kind == "l" else "-") + flag for kind, flag in pairs}, name
