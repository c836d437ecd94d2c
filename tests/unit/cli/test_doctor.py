"""What ``prepserver doctor`` finds, here and on machines that lack something."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from prepserver.cli import doctor, exits, main
from prepserver.memory import budget
from prepserver.transform import native

NAMES = ["sandbox of the workers", "memory", "shared memory", "cores", "open files", "compiled kernels", "daemon"]


def looked(**other: Any) -> dict[str, doctor.Finding]:
    arguments = argparse.Namespace(runtime_dir="/nowhere", seconds=0.0, **other)
    return {each.name: each for each in doctor.findings(arguments)}


def test_all_is_looked_at_and_what_is_not_ok_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked()
    assert list(found)[:7] == NAMES
    assert all(each.fix for each in found.values() if each.severity != "ok")
    assert not any(each.severity == "broken" for each in found.values())
    speed = found["decoding"].figures
    assert speed["predicted_images_per_s"] >= speed["images_per_s_per_core"] > 0
    assert "prepserver start -d" in found["daemon"].text


def test_kernels_that_are_off_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPSERVER_NATIVE", "0")
    native.forget()
    try:
        found = looked()["compiled kernels"]
    finally:
        monkeypatch.undo()
        native.forget()
    assert found.severity == "slow"
    assert "PREPSERVER_NATIVE=0" in found.text
    assert found.fix == "unset PREPSERVER_NATIVE"


@pytest.mark.parametrize(("free_mib", "severity"), [(4096, "ok"), (500, "slow"), (1, "broken")])
def test_too_little_memory_names_its_limit(free_mib: int, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "machine_free_bytes", lambda: (free_mib << 20, "memory.max is 1 MiB"))
    found = looked()["memory"]
    assert found.severity == severity
    assert ("memory.max" in found.fix) == (severity != "ok")


def test_limits_on_cores_and_files_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1024)
    monkeypatch.setattr("resource.getrlimit", lambda _which: (64, 64))
    found = looked()
    assert found["cores"].severity == "slow"
    assert "--cpus" in found["cores"].fix
    assert found["open files"].severity == "broken"
    assert "LimitNOFILE" in found["open files"].fix


def test_the_exit_code_says_whether_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runtime-dir", "/nowhere", "--seconds", "0"]
    assert main(["doctor", *where]) == exits.OK
    assert "decoding: " in capsys.readouterr().out
    monkeypatch.setattr(doctor, "machine_free_bytes", lambda: (0, "the limit"))
    assert budget.machine_free_bytes()[0] > 0
    assert main(["doctor", "--json", *where]) == exits.FAILED
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {each["name"]: each["severity"] for each in findings}["memory"] == "broken"
