"""What tests may do without on a developer's machine, and not in CI: there, what would be skipped fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

IN_CI = os.environ.get("PREPSERVER_TEST_ALL", "0") != "0"
JPEGTRAN = shutil.which("jpegtran")

needs_kernels = pytest.mark.needs_kernels  # conftest.py looks for it


def missing(what: str) -> NoReturn:
    """Skip the test that cannot run without it; in CI, fail it."""
    if IN_CI:
        pytest.fail(f"CI has to test this, too: {what}")
    pytest.skip(what)
