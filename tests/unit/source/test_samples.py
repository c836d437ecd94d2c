from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path

import pytest

from prepserver.source import SampleError
from prepserver.source.samples import read_regular_file
from tests.support.leaks import descriptors
from tests.support.waiting import PATIENCE_S


def test_the_whole_file_is_read(tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "a.jpg").write_bytes(content)
    (tmp_path / "link.jpg").symlink_to("a.jpg")
    assert read_regular_file(os.fsencode(tmp_path / "a.jpg")) == content
    assert read_regular_file(os.fsencode(tmp_path / "link.jpg")) == content


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket must be short
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(
    "make",
    [make_fifo, make_socket, Path.mkdir, lambda path: path.symlink_to("/dev/zero")],
    ids=["fifo", "socket", "folder", "device"],
)
def test_what_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path, make: object) -> None:
    path = tmp_path / "x.jpg"
    assert callable(make)
    make(path)
    with pytest.raises(SampleError, match="not a regular file"):
        read_regular_file(os.fsencode(path))


def test_missing_files_dead_links_and_empty_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "dead.jpg").symlink_to("nowhere")
    (tmp_path / "empty.jpg").touch()
    for name, reason in (("none.jpg", "gone"), ("dead.jpg", "link to nothing"), ("empty.jpg", "is empty")):
        with pytest.raises(SampleError, match=reason) as caught:
            read_regular_file(os.fsencode(tmp_path / name))
        assert str(tmp_path) not in caught.value.reason


def test_a_file_over_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "big.jpg"
    path.touch()
    os.truncate(path, 300 << 20)
    with pytest.raises(SampleError, match=f"{300 << 20} bytes are more than the limit of {256 << 20}"):
        read_regular_file(os.fsencode(path))


def test_no_descriptors_left_is_not_the_samples_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            read_regular_file(os.fsencode(tmp_path / "a.jpg"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
    assert not isinstance(caught.value, SampleError)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "empty.jpg").touch()
    before = descriptors()
    read_regular_file(os.fsencode(tmp_path / "a.jpg"))
    with pytest.raises(SampleError):
        read_regular_file(os.fsencode(tmp_path / "empty.jpg"))
    assert len(os.listdir("/proc/self/fd")) == before
