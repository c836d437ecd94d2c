"""What ``prepserver doctor`` finds, here and on machines that lack something."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from prepserver.cli import doctor, exits, hardware, main
from prepserver.cli.hardware import Finding
from prepserver.memory import budget
from prepserver.transform import native

NAMES = [
    "sandbox of the workers",
    "memory",
    "shared memory",
    "cores",
    "open files",
    "compiled kernels",
    "container",
    "daemon",
]


def looked(**other: Any) -> dict[str, Finding]:
    given = {"runtime_dir": "/nowhere", "seconds": 0.0, "storage": None, "job_rate": 1.0, "engine": "local", **other}
    arguments = argparse.Namespace(**given)
    return {each.name: each for each in doctor.findings(arguments)}


def test_all_is_looked_at_and_what_is_not_ok_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked()
    assert list(found)[:8] == NAMES
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


def test_a_machine_too_slow_for_one_job_says_so() -> None:
    assert looked()["decoding"].severity == "ok"
    slow = looked(job_rate=1e6)["decoding"]
    assert slow.severity == "slow"
    assert slow.figures["jobs_fed"] < 1
    assert "feeds 0.0 jobs at 1,000,000 images/s" in slow.text


def test_the_storage_of_a_dataset_is_measured(tmp_path: Path) -> None:
    assert looked(storage=str(tmp_path))["storage"].severity == "broken"
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(10_000))
    with (tmp_path / "large.tar").open("wb") as large:
        large.truncate(1 << 30)
    (tmp_path / "gone.jpg").symlink_to("nowhere")  # counts as no file
    found = hardware.storage(str(tmp_path), 0.02, 2, wanted_per_s=1e-3)
    assert found.severity == "ok"
    assert found.figures["files_per_s"] > 0
    slow = hardware.storage(str(tmp_path), 0.0, 1, wanted_per_s=1e9)
    assert slow.severity == "slow"
    assert f"prepserver pack {tmp_path} OUT" in slow.fix


def test_a_storage_without_readable_files_is_broken(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to("nowhere")
    found = hardware.storage(str(tmp_path), 0.02, 2, wanted_per_s=1.0)
    assert (found.severity, found.text) == ("broken", f"no file below {tmp_path} can be read")


@pytest.mark.parametrize(
    ("node", "cores", "severity", "fix"),
    [("1", "8-15,24", "slow", "numactl --cpunodebind=1 --membind=1"), ("0", "0-3,5", "ok", ""), ("-1", "", "ok", "")],
)
def test_a_gpu_far_from_the_cores_is_named(node: str, cores: str, severity: str, fix: str, tmp_path: Path) -> None:
    place = tmp_path / "0000:65:00.0"
    place.mkdir()
    (place / "numa_node").write_text(f"{node}\n")
    (place / "local_cpulist").write_text(f"{cores}\n")
    found = hardware.near(0, "00000000:65:00.0", {3, 4}, tmp_path)
    assert found.severity == severity
    assert fix in found.fix
    assert hardware.near(1, "00000000:66:00.0", {3}, tmp_path).severity == "ok"


def test_a_gpu_that_does_not_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that has fallen off the bus."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda _: pynvml.c_nvmlDevice_t())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", raises_lost)
    (found,) = hardware.gpus()
    assert (found.name, found.severity) == ("GPU 0", "broken")
    assert "GPU is lost" in found.text


def raises_lost(_handle: object) -> str:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


def test_the_flags_of_a_container_are_those_that_matter(tmp_path: Path) -> None:
    def found(**environment: str) -> Finding:
        return hardware.container(tmp_path, environment)

    assert found().text == "none"
    (tmp_path / ".dockerenv").touch()
    assert found().text.startswith("Docker; neither --ipc=host")
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    assert "--pid=host" in found().fix
    assert found(KUBERNETES_SERVICE_HOST="10.0.0.1").text.startswith("Kubernetes")
