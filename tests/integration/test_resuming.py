"""Training with the frameworks of `examples/` that dies in mid-epoch and resumes: each sample once in each epoch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.resuming import EPOCHS, LOOPS, SAMPLES, steps_of
from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[1] / "support" / "resuming.py"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("framework", LOOPS)
def test_a_framework_resumes_in_mid_epoch(framework: str, ranks: int, server: Server, tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    env = environment(PREPSERVER_RUNTIME_DIR=str(server.runtime_dir), OMP_NUM_THREADS="1")
    for _launch in ("the first one dies", "the second one resumes"):
        command = [sys.executable, *torchrun, str(SCRIPT), str(tmp_path), framework]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env)
        assert ended.returncode == 0, ended.stderr
    steps, saved = steps_of(ranks), steps_of(ranks) + 1
    epochs: list[list[int]] = [[] for _ in range(EPOCHS)]
    for rank in range(ranks):
        first, second = (
            [json.loads(line) for line in (tmp_path / f"read-{part}-{rank}").read_text().splitlines()]
            for part in ("first", "second")
        )
        assert [step for step, _ in first] == [*range(1, saved + 2)]
        assert [step for step, _ in second] == [*range(saved + 1, EPOCHS * steps + 1)]
        for step, read in first[:saved] + second:
            epochs[(step - 1) // steps] += read
    assert [sorted(read) for read in epochs] == [[*range(SAMPLES)]] * EPOCHS
