"""What child processes import: the measured checkout's product, this checkout's bench, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.harness.fingerprint import ROOT
from bench.harness.server import TREE, environment


def child(code: str, *options: str) -> list[str]:
    """What a child prints that is started in this checkout."""
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    ).stdout.split()


def test_children_import_the_other_commit_and_this_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = [tmp_path / "prepserver", tmp_path / "client" / "prepclient"]
    for package in packages:
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    monkeypatch.setenv(TREE, str(tmp_path))
    found = child(
        "import prepserver, prepclient, bench; print(prepserver.__file__, prepclient.__file__, bench.__file__)"
    )
    assert [Path(path).parent for path in found] == [*packages, ROOT / "bench"]


def test_a_bare_python_can_import_what_runs_a_contender() -> None:
    names = ["harness.job", "peers.contenders.crops", "peers.contenders.endless", "peers.contenders.lists"]
    code = "import sys, bench." + ", bench.".join(names) + "; print(*sys.modules)"
    assert not {"prepserver", "prepclient", "torch", "numpy"} & set(child(code, "-S"))
