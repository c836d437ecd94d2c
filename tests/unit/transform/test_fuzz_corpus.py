"""What fuzzing has shown, with the kernels as they are installed; `python -m tests.fuzz` has them instrumented."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[3]


def test_no_kept_input_ends_a_process_or_differs_by_path(
    path_of: Callable[[str], AbstractContextManager[None]],
) -> None:
    with path_of("native"):  # in a process of its own, which some of these have ended
        command = [sys.executable, "-m", "tests.fuzz", "--installed", "--replay"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
