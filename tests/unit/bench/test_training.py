"""Jobs that train, on the CPU: what they do with a batch, what they tell, and which cells and targets there are."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.cases import training
from bench.harness.case import Run
from bench.harness.command import main
from bench.harness.contender import SIZE
from bench.harness.job import consume
from bench.harness.jobs import Job
from bench.harness.rounds import Target, disturbed
from bench.harness.training import Training
from prepclient import PrepClient, RandomResizedCrop, SyntheticImages


@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_a_step_trains_on_either_layout(model: str) -> None:
    step = Training(model, "cpu", 2)
    images = torch.randint(0, 256, (2, SIZE, SIZE, 3), dtype=torch.uint8)
    before = [each.detach().clone() for each in step._model.parameters()]
    for batch in (images, images.permute(0, 3, 1, 2)):
        step(batch)
        after = [each.detach().clone() for each in step._model.parameters()]
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert all(each.isfinite().all() for each in after)
        before = after


def test_a_job_that_trains_tells_how_long_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    used: list[Any] = []
    with os.fdopen(read) as stdin, os.fdopen(write, "w") as out:
        monkeypatch.setattr(sys, "stdin", stdin)  # "first" comes back, and ends the loop
        config = {"batch": 4, "model": "resnet18"}
        with PrepClient(SyntheticImages(16, (64, 64)), [RandomResizedCrop(SIZE)], batch_size=4, inline=True) as client:
            found = consume(client, config, out, used.append)
    assert [len(batch) for batch in used] == found["images"]
    assert 0.0 <= found["waited_fraction"] <= 1.0


def rates(**by_feed: float) -> list[dict[str, Any]]:
    which = {"model": "resnet18", "jobs": 4, "part": 1}
    return [{**which, "feed": feed, "images_per_s": rate} for feed, rate in by_feed.items()]


@pytest.mark.parametrize(("other", "bound"), [(30.0, 3.0), (40.0, None)])
def test_three_times_is_wanted_where_a_gpu_starves(other: float, bound: float | None) -> None:
    rounds = [rates(resident=100.0, prepserver=90.0, torch_pillow=other)]
    found = {target.text: target for target in training.targets(rounds)}
    asked = found["resnet18, 4 job(s), all of the cores: images/s, prepserver / DataLoaders"]
    assert asked.bound == bound
    assert asked.found(rounds) == [90.0 / other]


def test_cells_without_time_left_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["training", "--smoke", "--device", "cpu", "--budget-s", "-1", "--json", str(tmp_path / "t.json")]
    assert main(command) == 0
    assert capsys.readouterr().out.count("Left out for lack of time: resnet18, 1 job(s), all of") == 3


def test_a_cell_that_fails_says_why_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs keep their processes until one fails; another model, or more jobs, need no new ones."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads of models on the CPU would wait for each other on busy cores
    run = Run(SimpleNamespace(smoke=False, workers=1), tmp_path)  # type: ignore[arg-type]
    cores = sorted(os.sched_getaffinity(0))
    job = partial(run.job, listed=tmp_path, device="cpu", batch=1)
    with contextlib.ExitStack() as stack:
        place = training._Place(run, cores, (0.0, 2.0), stack)  # a step takes a second on busy cores

        def cell(feed: str, model: str, jobs: int, part: int = 1) -> tuple[dict[str, Any], list[int]]:
            found = place.cell(partial(job, feed, model=model), jobs, part, is_own=False)
            return found, place._jobs.pids if place._jobs else []

        first, [pid] = cell("resident", "resnet18", 1)
        both, [same, _] = cell("resident", "resnet18", 2, 2)
        other, alone = cell("resident", "resnet50", 1)
        assert all(len(found["per_job"]) == jobs for found, jobs in ((first, 1), (both, 2), (other, 1)))
        assert [same, *alone] == [pid, pid]
        failed, none = cell("no_such", "resnet50", 1)
        assert "a job said ''" in failed["failed"]
        assert none == []
        last, [new] = cell("resident", "resnet50", 1)
        assert new != pid
        assert last["images_per_s"] > 0
        assert sorted(os.sched_getaffinity(0)) == cores


def test_a_job_that_has_ended_fails_its_cell_and_no_more() -> None:
    job = Job({"contender": "no_such_contender"})
    assert job._process.wait(60) != 0
    job.say("go")
    with pytest.raises(SystemExit, match="a job said ''"):
        job.hear()
    job.end()


@pytest.mark.parametrize(("cores", "is_disturbed"), [(2, True), (16, False)])
def test_a_large_machine_may_use_more_for_itself(cores: int, is_disturbed: bool) -> None:
    rounds = [[{"feed": "prepserver", "cores": cores, "others_cores": 0.5, "images_per_s": 9.0}]]
    target = Target("", "images_per_s", {"feed": "prepserver"}, None, 8.0)
    assert target.is_disturbed(rounds) == is_disturbed
    assert bool(disturbed(rounds)) == is_disturbed
