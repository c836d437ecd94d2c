"""The demo's own DataLoader names a file that Pillow cannot decode."""

from __future__ import annotations

from pathlib import Path

import pytest

from prepserver.demo.loader import Photos, make_loader
from prepserver.pipeline.sources import ImageFolder
from prepserver.source import build_index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_named_in_the_last_line(tmp_path: Path, workers: int) -> None:
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "data" / "cats" / "7.jpg").write_bytes(b"no image")
    source = ImageFolder(str(tmp_path / "data"))
    photos = Photos(source.to_wire(), build_index(source, tmp_path / "index").path, 32)
    loader = make_loader(photos, 1, workers, seed=0) if workers else photos
    with pytest.raises(ValueError, match="cannot be decoded") as failed:
        next(iter(loader)) if workers else photos[0]
    assert "cats/7.jpg cannot be decoded" in str(failed.value).strip().splitlines()[-1]
