"""The recipes in examples/ run as they are, most of them in this process; `test_plugins` has the others."""

from __future__ import annotations

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
    "plain_loop": r"16 steps, 512 images(.|\n)*computing(.|\n)*Verdict: ",
    "gradient_accumulation": r"epoch 1: 15 batches, 4 steps, loss \d",
    "mixed_precision": r"torch.bfloat16, loss \d",
    "checkpoint": "epoch 1: 96 samples, 96 of them different",
    "text_buckets": r"as stored: [3-9]\d % padding.*\nin buckets: \d % padding, loss \d",
    "sweep": r"(lr [\d.]+: loss [\d.]+, [123].\d rows delivered for each row made\n){3}",
}


@pytest.mark.parametrize("name", SAYS)
def test_a_recipe_runs(
    name: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(server.runtime_dir))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(SAYS[name], capsys.readouterr().out)


def test_the_recipe_for_two_ranks_runs(server: Server) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLES / "ddp.py")]
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=environment(PREPSERVER_RUNTIME_DIR=str(server.runtime_dir), OMP_NUM_THREADS="1"),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for rank in (0, 1):
        assert f"rank {rank}: epoch 1, 7 batches" in ended.stdout


def test_every_recipe_is_short_and_has_a_test() -> None:
    recipes = {path.stem: path for path in EXAMPLES.glob("*.py") if not path.stem.startswith("plugin_")}
    assert set(recipes) == {*SAYS, "ddp"}
    assert all(len(path.read_text().splitlines()) <= 60 for path in recipes.values())
