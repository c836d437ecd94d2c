"""What a sealed worker may still open."""

from __future__ import annotations

import sysconfig
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
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path / "site"))
    assert sandbox._code() == [f"{tmp_path}/site", f"{tmp_path}/store/package"]
