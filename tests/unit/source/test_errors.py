"""What is said of datasets can be shown whatever their files are called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepserver.pipeline.sources import ImageFolder
from prepserver.source import SourceError, build_index
from prepserver.source.errors import printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [("plain ü.jpg", "plain ü.jpg"), ("a\nb", "a\\nb"), ("\x1b[31mred", "\\x1b[31mred"),
     (os.fsdecode(b"\xff.jpg"), "\\udcff.jpg")],
)  # fmt: skip
def test_a_name_is_one_line_with_odd_characters_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown


def test_an_empty_class_folder_of_odd_name_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "da\nta" / "bad\n\x1b[2Jname").mkdir(parents=True)
    with pytest.raises(SourceError) as refused:
        build_index(ImageFolder(str(tmp_path / "da\nta")), tmp_path / "index")
    assert refused.value.reason.isprintable()
