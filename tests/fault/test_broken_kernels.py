"""Compiled kernels that crash on this machine: the daemon notices, logs it, and serves without them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from prepclient import PrepClient, SyntheticImages
from tests.support.broken_kernels import broken_library
from tests.support.clients import OPS
from tests.support.server import Server, cli

pytestmark = pytest.mark.fault

ROOT = Path(__file__).resolve().parents[2]
SOURCE = SyntheticImages(64, 32)


def test_a_daemon_with_kernels_that_crash_serves_without_them(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for name in ("prepserver", "client"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(
        broken_library(tmp_path, "*(volatile int *)0 = 1; return 0;"), copy / "prepserver/transform/native/_native.so"
    )
    server = new_server(workers=1, env={"PYTHONPATH": os.pathsep.join(map(str, (copy, copy / "client")))})
    zygote = server.zygote
    with PrepClient(SOURCE, OPS, runtime_dir=server.runtime_dir, batch_size=16, fields="dict") as client:
        assert sum(len(batch["index"]) for batch in client) == 64
    assert server.zygote == zygote
    found = server.status()["kernels"]
    assert found["path"] == "pure"
    assert "killed by SIGSEGV" in found["why"]
    assert "the compiled kernels" in server.log()
    assert found["why"] in server.log()
    said = cli("status", "--runtime-dir", str(server.runtime_dir)).stdout
    assert "killed by SIGSEGV" in " ".join(said.split())
