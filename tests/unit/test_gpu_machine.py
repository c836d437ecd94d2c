"""What a machine that has only torch gets of the packages that were taken along for its GPU tests."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.gpu import machine

NEXT = sys.version_info.minor + 1
PACKAGES = {
    "no_such_pure": "no-such-pure", "no_such_stable": "no-such-stable", "no_such_later": "no-such-later",
    "no_such_other": "no-such-other", "torch": "torch", "no_such_wheel": "no-such-wheel",
}  # fmt: skip


def test_wheels_for_this_python_are_unpacked_where_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KIT", tmp_path)
    monkeypatch.setattr(machine, "PACKAGES", PACKAGES)
    (tmp_path / "wheels").mkdir()
    tags = {"pure": "py2.py3-none-any", "stable": "cp311-abi3-linux", "later": f"cp3{NEXT}-abi3-linux"}
    for name, tag in (tags | {"other": f"cp3{NEXT}-cp3{NEXT}-linux"}).items():
        with zipfile.ZipFile(tmp_path / "wheels" / f"no_such_{name}-1.0-{tag}.whl", "w") as wheel:
            wheel.writestr(f"no_such_{name}.py", "")
    assert machine.unpack() == ["no-such-later", "no-such-other", "no-such-wheel"]
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["no_such_pure.py", "no_such_stable.py"]
