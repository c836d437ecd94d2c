"""Rows keep their bytes: a checkpoint of an earlier release resumes with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import PIL
import pytest

from prepclient import CenterCrop
from tests.golden.rows import digest, digests_of, encoded_as_here, load, sources

KEPT = load()
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_the_rows_of_every_pipeline_are_what_they_were(part: int, tmp_path: Path) -> None:
    given = sources(tmp_path)
    if is_other := KEPT["files"] != [encoded_as_here()]:
        del given["odd"]
    for kept in KEPT["rows"][part::PARTS]:
        found: dict[str, Any] = {"pipeline": kept["pipeline"], **digests_of(kept["pipeline"], given)}
        assert found == {name: kept[name] for name in found}
    if is_other:
        pytest.skip(f"Pillow {PIL.__version__} writes other files than when rows.json was made: drawn images only")


def test_every_order_is_what_it_was(tmp_path: Path) -> None:
    drawn = sources(tmp_path)["drawn"]
    for kept in KEPT["orders"]:
        assert digest(drawn, [CenterCrop(16)], **kept["order"]) == kept["digest"], kept["order"]
