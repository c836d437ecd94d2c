"""What a sealed worker may still open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prepserver.worker import sandbox


def test_packages_that_are_links_stay_open_where_they_really_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some installers keep one copy of each package for all environments."""
    for folder in ("site", "store/package", "store/other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "store" / "module.py").touch()
    (tmp_path / "site" / "package").symlink_to(tmp_path / "store" / "package")
    (tmp_path / "site" / "module.py").symlink_to(tmp_path / "store" / "module.py")
    monkeypatch.setattr(sandbox, "_LIBRARIES", (str(tmp_path / "site"), str(tmp_path / "none")))
    assert sandbox._code() == [f"{tmp_path}/site", f"{tmp_path}/store/package"]


@pytest.mark.parametrize("asked", [1 << 40, 1 << 20])
def test_a_limit_on_data_raises_none_that_is_there(asked: int) -> None:
    """In a child, because a hard limit stays."""
    code = (
        "import resource; from prepserver.worker.sandbox import limit_data; data = resource.RLIMIT_DATA; "
        f"resource.setrlimit(data, (2 << 30, 2 << 30)); limit_data({asked}); print(resource.getrlimit(data)[1])"
    )
    found = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert found == 2 << 30 if asked > 2 << 30 else asked < found < 2 << 30
