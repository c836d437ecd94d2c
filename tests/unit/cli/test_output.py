"""What ``-o`` names is written whole, or not at all."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from prepserver.cli.exits import CommandError
from prepserver.cli.output import write_output


def test_a_file_is_written_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write_output(tmp_path / "link", b"one")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"one"
    write_output(Path(os.devnull), b"two")
    assert Path(os.devnull).is_char_device()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_dash_is_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_output(Path("-"), b"\xff\x00")
    assert capsysbinary.readouterr().out == b"\xff\x00"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_disk_that_is_full_leaves_what_was_there(before: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    if before is not None:
        file.write_bytes(before)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # as a disk with room for so much
    try:
        with pytest.raises(CommandError, match=f"^-o {file}: "):
            write_output(file, bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([] if before is None else [before])
