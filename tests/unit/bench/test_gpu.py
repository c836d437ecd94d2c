"""What the case for a GPU does with its checks; the checks themselves need a GPU."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cases import gpu
from bench.harness.command import main
from tests.support import leaks
from tests.support.waiting import wait_until


def fails() -> gpu.Facts:
    raise RuntimeError("no such flag")


def logs() -> gpu.Facts:
    logging.getLogger("prepclient").warning("cannot fuse")
    return {"rate": 1.5}


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="a GPU", total_memory=1 << 30)
    monkeypatch.setattr(gpu, "cuda", SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, device_count=lambda: 1,
        get_device_properties=lambda _device: properties,
    ))  # fmt: skip
    monkeypatch.setattr(gpu, "CHECKS", [("one", fails), ("two", logs), ("three", fails)])
    monkeypatch.setattr(gpu, "answer", lambda command, patience_s: gpu.run_check(int(command[-1])))


@pytest.mark.usefixtures("fake_cuda")
def test_a_check_that_fails_says_why_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--json", str(tmp_path / "gpu.json"), "--only", "1,2", "--markdown"]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())["found"]
    assert found["device"]["gpu"] == "a GPU"
    assert found["one"] == {"failed": "RuntimeError: no such flag"}
    assert found["two"] == {"rate": 1.5, "logged": ["cannot fuse"]}
    assert "three" not in found
    said = capsys.readouterr()
    assert "| rate | 1.5 |" in said.out
    assert f"1. one: {json.dumps(found['one'])}\n" in said.err


def test_a_check_that_hangs_ends_with_its_processes(tmp_path: Path) -> None:
    command = ["sh", "-c", 'sleep 600 & echo $! >"$0"; wait', str(tmp_path / "pid")]
    assert gpu.answer(command, 5.0) == {"failed": "no answer within 5 s"}
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: leaks.gone(pid) or leaks.is_zombie(pid))


def test_a_check_that_crashes_says_so() -> None:
    found = gpu.answer([sys.executable, "-c", "import os; os.abort()"], 60.0)
    assert found == {"failed": "the process ended with -6; its stderr says more"}


def test_a_check_in_a_process_of_its_own_answers() -> None:
    assert gpu.answer([sys.executable, "-m", "bench.cases.gpu", "check", "6"], 120.0)


def test_without_a_device_it_says_so_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught:
        main(["gpu", "--json", str(tmp_path / "gpu.json")])
    assert caught.value.code == 0
    assert capsys.readouterr().out == "no CUDA device: nothing to measure here\n"
