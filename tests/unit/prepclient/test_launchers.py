"""Launchers that do not say enough: a warning names what to pass, and what is read stays as it was."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from prepclient import CenterCrop, PrepClient, Sharding, SyntheticImages
from prepclient.launchers import warn_of_launcher
from prepclient.spec import Spec, make_spec

SRUN = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
RAY = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "0"}


@pytest.fixture(autouse=True)
def nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepclient.launchers._was_warned", threading.Event())


@pytest.fixture
def two_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(process_count=lambda: 2))
    monkeypatch.setitem(sys.modules, "jax.distributed", SimpleNamespace(is_initialized=lambda: True))


def spec(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], sharding: Sharding | None = None) -> Spec:
    with monkeypatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return make_spec(
            SyntheticImages(8), [CenterCrop(8)], batch_size=2, shuffle=True, seed=0, drop_last=False,
            sharding=sharding, job="j",
        )  # fmt: skip


def said(caplog: pytest.LogCaptureFixture, spec: Spec, environ: dict[str, str], *, is_inline: bool = False) -> str:
    """What two calls say together: the second one never adds anything."""
    for _ in range(2):
        warn_of_launcher(spec, environ, is_inline=is_inline)
    return "".join(caplog.messages)


@pytest.mark.usefixtures("two_of_jax")
def test_processes_of_jax(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for given in (Sharding(num_shards=2, shard_index=1), Sharding(rank=1, world_size=2)):
        assert not said(caplog, spec(monkeypatch, {}, given), {})
    text = said(caplog, spec(monkeypatch, {}), {})
    assert text.startswith("jax.distributed runs 2 processes, and each will read all samples. Pass sharding=Sharding(")


def test_tasks_of_srun(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is told by the first batch, not before: a process group may begin after the client was made."""
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    with PrepClient(SyntheticImages(8), [CenterCrop(8)], batch_size=2, job="j", inline=True) as train:
        assert len(train) == 4
        assert not caplog.messages
        assert sum(len(labels) for _, labels in train) == 8
    (text,) = caplog.messages
    assert text.startswith("srun runs 2 tasks, and each will read all samples. ")
    assert "Sharding(rank=int(os.environ['SLURM_PROCID']), world_size=2)" in text
    assert "Sharding(rank=0, world_size=1)" in text


@pytest.mark.parametrize(
    "environ",
    [
        SRUN | {"SLURM_PROCID": "1"},  # task 0 says it
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},  # srun --pty, or a task that starts torchrun
        {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},  # the batch script itself
        SRUN | {"RANK": "0", "WORLD_SIZE": "2"},
        SRUN | {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_where_srun_leaves_nothing_open(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not said(caplog, spec(monkeypatch, environ), environ)


def test_all_samples_for_each_task_can_be_meant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not said(caplog, spec(monkeypatch, SRUN, Sharding(rank=0, world_size=1)), SRUN)


@pytest.mark.parametrize(
    ("environ", "index"),
    [
        (RAY, "int(os.environ['NODE_RANK'])"),
        ({name: RAY[name] for name in RAY if name != "NODE_RANK"}, "the number of the machine"),
    ],
)
def test_machines_of_ray(
    environ: dict[str, str], index: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = said(caplog, spec(monkeypatch, environ), environ)
    assert text.startswith("each machine makes the rows of all 8 ranks, although it runs 4 of them. ")
    assert f"pass sharding=Sharding(num_shards=2, shard_index={index}), and" in text


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_of_a_process_group_on_machines_of_srun(
    ranks: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The group gives ranks, and nobody says which of them are on this machine."""
    environ = SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "1"}
    group = {"RANK": "0", "WORLD_SIZE": str(ranks)}
    for known in ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks)}, {"SLURM_STEP_NUM_NODES": "1"}):
        assert not said(caplog, spec(monkeypatch, environ | group | known), environ | known)
    text = said(caplog, spec(monkeypatch, environ | group), environ)
    assert text.startswith("srun runs tasks on 2 machines. If the 4 ranks of this job do, each ") == (ranks > 1)


@pytest.mark.parametrize(
    ("environ", "sharding", "is_inline"),
    [
        (RAY | {"RANK": "4", "NODE_RANK": "1"}, None, False),  # rank 0 says it
        (RAY | {"WORLD_SIZE": "9"}, None, False),  # machines differ
        (RAY | {"WORLD_SIZE": "4"}, None, False),
        (RAY | {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}, None, False),
        (RAY | {"WORLD_SIZE": "12", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}, None, False),
        (RAY, Sharding(num_shards=1), False),
        (RAY, Sharding(num_shards=2, shard_index=0), False),
        (RAY, None, True),  # makes the rows of this rank only
    ],
)
def test_where_nothing_can_be_done_for_machines(
    environ: dict[str, str], sharding: Sharding | None, is_inline: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    assert not said(caplog, spec(monkeypatch, environ, sharding), environ, is_inline=is_inline)
