"""What the case for a GPU does with its checks; the checks themselves need a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cases import gpu
from bench.harness.command import main


def fails() -> gpu.Facts:
    raise RuntimeError("no such flag")


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="a GPU", total_memory=1 << 30)
    monkeypatch.setattr(gpu, "cuda", SimpleNamespace(
        is_available=lambda: True, init=lambda: None, current_device=lambda: 0, device_count=lambda: 1,
        get_device_properties=lambda _device: properties,
    ))  # fmt: skip
    monkeypatch.setattr(gpu, "CHECKS", [("one", fails), ("two", lambda: {"rate": 1.5}), ("three", fails)])


@pytest.mark.usefixtures("fake_cuda")
def test_a_check_that_fails_says_why_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--json", str(tmp_path / "gpu.json"), "--only", "1,2", "--markdown"]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())["found"]
    assert found["device"]["gpu"] == "a GPU"
    assert found["one"] == {"failed": "RuntimeError: no such flag"}
    assert found["two"] == {"rate": 1.5}
    assert "three" not in found
    assert "| rate | 1.5 |" in capsys.readouterr().out


def test_without_a_device_it_says_so_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught:
        main(["gpu", "--json", str(tmp_path / "gpu.json")])
    assert caught.value.code == 0
    assert capsys.readouterr().out == "no CUDA device: nothing to measure here\n"
