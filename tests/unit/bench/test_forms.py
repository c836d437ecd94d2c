"""Data in other forms is written once, and a write that was cut off is done again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from bench.peers.forms import Forms
from bench.peers.venvs import Pythons


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    lines = []
    for number in range(3):
        Image.new("RGB", (64, 48), (80 * number, 90, 100)).save(folder / f"{number}.jpg")
        lines.append(f"{folder}/{number}.jpg\t{number}\n")
    (tmp_path / "list.txt").write_text("".join(lines * 2))
    return tmp_path / "list.txt"


def forms(samples: Path) -> Forms:
    return Forms(samples.parent / "cache", samples, 1, Pythons(samples.parent, {}))


def test_a_form_is_written_once_for_the_same_pictures(samples: Path, tmp_path: Path) -> None:
    """It does not matter where the pictures lie."""
    first = forms(samples).ensure("packed")
    written = first.stat().st_mtime_ns
    assert forms(samples).nbytes("packed") == sum(p.stat().st_size for p in first.rglob("*") if p.is_file())
    shutil.copytree(tmp_path / "photos", tmp_path / "elsewhere")
    samples.write_text(samples.read_text().replace("/photos/", "/elsewhere/"))
    again = forms(samples).ensure("packed")
    assert (again, again.stat().st_mtime_ns) == (first, written)
    samples.write_text(samples.read_text().replace("\t2", "\t1"))
    assert forms(samples).ensure("packed") != first


def test_what_a_killed_writer_left_is_not_taken_for_a_form(samples: Path) -> None:
    whole = forms(samples).ensure("packed")
    files = {p.name for p in whole.iterdir()}
    for left in (whole, whole.with_name("packed.part")):  # killed before the note, or before the new name
        shutil.rmtree(whole.parent)
        left.mkdir(parents=True)
        (left / "half").write_text("")
        assert {p.name for p in forms(samples).ensure("packed").iterdir()} == files
