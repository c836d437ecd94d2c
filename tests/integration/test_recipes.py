"""The recipes in examples/ run as they are, most of them in this process; `test_plugins` has the others."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "plain_loop": r"16 steps, 512 samples(.|\n)*computing(.|\n)*Verdict: ",
    "gradient_accumulation": r"epoch 1: 15 batches, 4 steps, loss \d",
    "mixed_precision": r"torch.bfloat16, loss \d",
    "checkpoint": "epoch 1: 96 samples, 96 of them different",
    "text_buckets": r"as stored: [3-9]\d % padding.*\nin buckets: 1?\d % padding, loss \d",
    "sweep": r"(lr [\d.]+: loss [\d.]+, [123].\d rows delivered for each row made\n){3}",
    "compiled": r"epoch 1: 3 batches, loss \d",
    "train_and_evaluate": r"epoch 1: 192 trained on, \d+ of 50 right",
}
RANKS = {"ddp": (2, "rank {rank}: epoch 1, 7 batches"), "tensor_parallel": (4, "rank {rank}: part {part}, 3 batches")}
OTHERS = {
    "jax_loop": ("jax", r"epoch 1: \(32, 64, 64, 3\) on \S+, loss 6\.\d"),
    "lightning_trainer": ("lightning", "epoch 2: 14 steps, 2 epochs read"),
    "accelerate_loop": ("accelerate", r"epoch 1: 7 batches, loss \d"),
    "hf_trainer": ("transformers", r"14 steps, 14 batches(.|\n)*14 steps, 18 batches read"),
}


@pytest.mark.parametrize("name", SAYS)
def test_a_recipe_runs(
    name: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(server.runtime_dir))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(SAYS[name], capsys.readouterr().out)


def run(command: list[str], server: Server) -> subprocess.CompletedProcess[str]:
    """Runs a recipe in a process of its own."""
    env = environment(PREPSERVER_RUNTIME_DIR=str(server.runtime_dir), OMP_NUM_THREADS="1")
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env
    )


@pytest.mark.parametrize("name", RANKS)
def test_a_recipe_for_several_ranks_runs(name: str, server: Server) -> None:
    ranks, says = RANKS[name]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    ended = run([*torchrun, str(EXAMPLES / f"{name}.py")], server)
    assert ended.returncode == 0, ended.stderr
    for rank in range(ranks):
        assert says.format(rank=rank, part=rank // 2) in ended.stdout


@pytest.mark.parametrize("name", OTHERS)
def test_a_recipe_for_another_framework_runs(name: str, server: Server) -> None:
    package, says = OTHERS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    ended = run([str(EXAMPLES / f"{name}.py")], server)
    assert ended.returncode == 0, ended.stderr
    assert re.search(says, ended.stdout)


def test_every_recipe_is_short_and_has_a_test() -> None:
    recipes = {path.stem: path for path in EXAMPLES.glob("*.py") if not path.stem.startswith("plugin_")}
    assert set(recipes) == {*SAYS, *RANKS, *OTHERS}
    assert all(len(path.read_text().splitlines()) <= 60 for path in recipes.values())
