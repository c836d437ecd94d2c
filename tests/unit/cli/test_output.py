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


def test_a_file_that_was_there_keeps_its_mode_and_owner(tmp_path: Path) -> None:
    file, umask = tmp_path / "page.html", os.umask(0o027)
    try:
        write_output(file, b"new")
    finally:
        os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o600)
    if os.getuid() == 0:
        os.chown(file, 60991, 60991)
    was = file.stat()
    write_output(file, b"newer")
    now = file.stat()
    assert (now.st_mode, now.st_uid, now.st_gid) == (was.st_mode, was.st_uid, was.st_gid)
    assert file.read_bytes() == b"newer"


def test_nobody_can_guess_where_it_is_written_first(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"secret")
    for name in (f"page.html.{os.getpid()}", ".prepserver-", "page.html.tmp"):
        (tmp_path / name).symlink_to(victim)
    write_output(tmp_path / "page.html", b"page")
    assert victim.read_bytes() == b"secret"
    assert not (tmp_path / "page.html").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    write_output(tmp_path / "loop", b"page")  # a link that leads nowhere is replaced
    assert (tmp_path / "loop").read_bytes() == b"page"


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
