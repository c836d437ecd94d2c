"""What the case for a GPU does with its checks; the checks themselves need a GPU."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cases import gpu
from bench.harness import gpu_checks
from bench.harness.case import Run
from bench.harness.command import main
from tests.support import leaks
from tests.support.waiting import wait_until


def fails() -> gpu_checks.Facts:
    raise RuntimeError("no such flag")


def logs() -> gpu_checks.Facts:
    logging.getLogger("prepclient").warning("cannot fuse")
    return {"rate": 1.5}


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="a GPU", total_memory=1 << 30)
    monkeypatch.setattr(gpu, "cuda", SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, device_count=lambda: 1,
        get_device_properties=lambda _device: properties,
    ))  # fmt: skip
    for module in (gpu, gpu_checks):
        monkeypatch.setattr(module, "CHECKS", [("one", fails), ("two", logs), ("three", fails)])
    monkeypatch.setattr(gpu, "answer", lambda command: gpu_checks.run_check(int(command[-1])))


@pytest.mark.usefixtures("fake_cuda")
def test_a_check_that_fails_says_why_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--json", str(tmp_path / "gpu.json"), "--only", "1,2", "--markdown"]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())["found"]
    assert found["device"]["gpu"] == "a GPU"
    one, two = json.dumps(found["one"]), found["two"]
    assert found["one"].pop("took_s") >= 0 <= two.pop("took_s")
    assert found["one"] == {"failed": "RuntimeError: no such flag"}
    assert two == {"rate": 1.5, "logged": ["cannot fuse"]}
    assert "three" not in found
    said = capsys.readouterr()
    assert "| rate | 1.5 |" in said.out
    assert f"one: {one}\n" in said.err
    assert "| one | failed: RuntimeError: no such flag | - | no |" in said.out


def test_a_check_that_hangs_ends_with_its_processes(tmp_path: Path) -> None:
    command = ["sh", "-c", 'sleep 600 & echo $! >"$0"; wait', str(tmp_path / "pid")]
    assert gpu.answer(command, 5.0) == {"failed": "no answer within 5 s"}
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: leaks.gone(pid) or leaks.is_zombie(pid))


def test_a_check_that_crashes_says_so() -> None:
    found = gpu.answer([sys.executable, "-c", "import os; os.abort()"], 60.0)
    assert found == {"failed": "the process ended with -6; its stderr says more"}


@pytest.mark.parametrize("said", ["", "bye"])
def test_an_answer_that_is_none_fails_its_check_only(said: str) -> None:
    assert said in gpu.answer([sys.executable, "-c", f"print({said!r}, end='')"], 60.0)["failed"]


def test_a_check_in_a_process_of_its_own_answers() -> None:
    assert gpu.answer([sys.executable, "-m", "bench.harness.gpu_checks", "check", "7"], 120.0)


def test_without_a_device_it_says_so_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught:
        main(["gpu", "--json", str(tmp_path / "gpu.json")])
    assert caught.value.code == 0
    assert capsys.readouterr().out == "no CUDA device: nothing to measure here\n"


def test_the_tests_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.skip\ndef test_a(): ...\ndef test_b(): ...\ndef test_c(): assert 0\n"
    )
    ran = gpu.output_of

    def here(command: list[str], patience_s: float, stdout: Any) -> tuple[int | None, str]:
        return ran([str(tmp_path) if word == "tests/gpu" else word for word in command], patience_s, stdout)

    monkeypatch.setattr(gpu, "output_of", here)
    found = gpu.tests(tmp_path / "report.xml")
    assert found == {"tests": 3, "failures": 1, "errors": 0, "skipped": 1, "failed_tests": ["test_c"]}
    monkeypatch.setattr(gpu, "_TESTS_S", 0.001)
    (tmp_path / "test_it.py").write_text("def test_a(): ...\ndef test_b(): ...\n")
    found = gpu.tests(tmp_path / "report.xml")
    assert (found["tests"], found["failed"]) == (1, "the time was up: some tests may not have run")


def test_each_target_has_a_line_that_says_whether_it_is_reached() -> None:
    found = {
        "tests": {"tests": 20, "failures": 1, "errors": 0, "skipped": 0},
        "memfd, locked": {"locked_37_MiB_by_torch_pinned": 0.99, "two_by_one": 0.9},
        "MIG": {"failed": "it crashed"},
        "training": {
            "rounds": [
                [
                    {"model": "resnet50", "jobs": 1, "part": 1, "feed": "prepserver", "waited_percent": 0.5},
                    {"model": "resnet50", "jobs": 1, "part": 1, "feed": "resident", "images_per_s": 9.0},
                ]
            ],
            "left_out": [],
        },
    }
    rows = gpu.sheets({"found": found})[-1].rows
    assert [(row[1], row[3]) for row in rows] == [
        ("0.50", "yes"), ("1", "no"), ("0.99", "yes"), ("0.9", "no"), ("failed: it crashed", "no"),
    ]  # fmt: skip


def test_bounds_name_facts_that_the_checks_find() -> None:
    source = Path(gpu_checks.__file__).read_text()
    assert {name for _, name, *_ in gpu._BOUNDS} <= {name for name, _ in gpu_checks.CHECKS}
    for _, _, fact, *_ in gpu._BOUNDS:
        stem = fact.replace("37_MiB", "{name}").replace("256_MiB", "{name}").replace("mixed_fused", "{name}")
        assert f'"{stem}"' in source


def test_training_that_is_cut_short_leaves_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the photos that were asked for; an older run's figures are not taken for them."""
    commands: list[list[str]] = []

    def cut(command: list[str], patience_s: float, stdout: Any) -> tuple[int | None, str]:
        commands.append(command)
        Path(command[command.index("--json") + 1]).write_text('{"rounds": [[]], "left_out": []}')
        return None, ""

    options = SimpleNamespace(json=tmp_path / "gpu.json", data=str(tmp_path))
    run = Run(options, tmp_path / "scratch")  # type: ignore[arg-type]
    monkeypatch.setattr(gpu, "output_of", cut)
    assert gpu.trained(run, 60.0) == {"rounds": [[]], "left_out": []}
    assert commands[0][-2:] == ["--data", str(tmp_path)]
    assert (tmp_path / "gpu.training.json").exists()
    monkeypatch.setattr(gpu, "output_of", lambda *_, **__: (1, ""))
    assert "failed" in gpu.trained(run, 60.0)


def test_a_run_that_was_cut_short_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = {"model": "resnet50", "jobs": 4, "part": 1, "feed": "resident", "failed": "no memory"}
    rest = tmp_path / "gpu.json"
    rest.write_text(json.dumps({"found": {"training": {"rounds": [[cell]], "left_out": []}}}))
    assert main(["gpu", "--show", str(rest)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Cut short")
    assert "failed: no memory" in said


def test_cells_that_failed_or_were_left_out_are_named() -> None:
    cell = {"model": "resnet50", "jobs": 4, "part": 1, "feed": "resident", "failed": "no memory"}
    result = {"found": {"training": {"rounds": [[cell]], "left_out": ["resnet18"]}}}
    said = gpu.remarks(result)
    assert said == [
        "resnet50, 4 job(s), on the GPU failed: no memory", "Left out for lack of time: resnet18",
    ]  # fmt: skip
    assert gpu.remarks({"found": {"training": {"failed": "no time was left"}}}) == []
