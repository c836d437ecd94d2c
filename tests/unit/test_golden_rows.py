"""Rows keep their bytes: a checkpoint of an earlier release resumes with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import PIL
import pytest

from prepclient import CenterCrop
from tests.golden.rows import digest, digest_of_op, digests_of, encoded_as_here, load, sources

ROOT = Path(__file__).resolve().parents[2]
KEPT = load()
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_the_rows_of_every_pipeline_are_what_they_were(part: int, tmp_path: Path) -> None:
    given = sources(tmp_path)
    is_other = KEPT["files"] != [encoded_as_here()]
    if is_other:
        del given["odd"]
    for kept in KEPT["rows"][part::PARTS]:
        found: dict[str, Any] = {"pipeline": kept["pipeline"], **digests_of(kept["pipeline"], given)}
        assert found == {name: value for name, value in kept.items() if not (is_other and name == "odd")}
    if is_other:
        pytest.skip(f"Pillow {PIL.__version__} writes other files than when rows.json was made: drawn images only")


def test_the_files_are_those_of_the_pinned_pillow() -> None:
    """Else no test would compare the rows of files any more."""
    if f"pillow=={PIL.__version__}" in (ROOT / "constraints.txt").read_text().splitlines():
        assert KEPT["files"] == [encoded_as_here()]


def test_every_order_is_what_it_was(tmp_path: Path) -> None:
    drawn = sources(tmp_path)["drawn"]
    for kept in KEPT["orders"]:
        assert digest(drawn, [CenterCrop(16)], **kept["order"]) == kept["digest"], kept["order"]


def test_the_rows_of_every_op_are_what_they_were() -> None:
    """Release 0.2 made the same."""
    changed = [each["pipeline"] for each in KEPT["ops"] if digest_of_op(each["pipeline"]) != each["digest"]]
    assert not changed
