"""What is installed, and what an import pulls in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.server import environment
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SHARED_ROOMS = {"protocol", "pipeline", "memory"}


def test_importing_prepclient_pulls_in_only_the_shared_rooms() -> None:
    code = (
        "import json, sys, prepclient; print(json.dumps(sorted(m for m in sys.modules if m.startswith('prepserver'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    modules = json.loads(done.stdout)
    assert "prepserver" in modules
    rooms = {name.split(".")[1] for name in modules if "." in name}
    assert rooms <= SHARED_ROOMS, rooms - SHARED_ROOMS


def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    copy = tmp_path / "copy"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "dist", "build")
    shutil.copytree(ROOT, copy, ignore=skipped)
    (copy / "client" / "stray.txt").write_text("not for the wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=copy, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    info = next(top for top in tops if top.endswith(".dist-info"))
    assert tops == {"prepserver", "prepclient", info}
    wanted = {f"prepserver/{p.relative_to(ROOT / 'prepserver')}" for p in (ROOT / "prepserver").rglob("*.py")}
    wanted |= {f"prepclient/{p.relative_to(ROOT / 'client/prepclient')}" for p in (ROOT / "client").rglob("*.py")}
    assert wanted <= set(names)
    assert f"{info}/licenses/LICENSE" in names
    assert {name for name in names if name.endswith((".pyc", ".txt")) and info not in name} == set()

    # Both names can be imported from it, away from the checkout.
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    env = {**environment(), "PYTHONPATH": str(target)}
    code = "import prepserver, prepclient; print(prepserver.__file__, prepclient.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    assert found.stdout.split() == [f"{target}/prepserver/__init__.py", f"{target}/prepclient/__init__.py"]
