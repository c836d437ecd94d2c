"""Where a client looks for a daemon: never in a directory that somebody else could have made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from prepclient.places import find_runtime_dir, places
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import RUNTIME_DIR_VARIABLE, SYSTEM_RUNTIME_DIR


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first of the usual places, in a directory where anyone may make one."""
    monkeypatch.delenv(RUNTIME_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o1777)
    return tmp_path / "prepserver"


def listening(place: Path) -> None:
    place.mkdir()
    (place / ATTACH_SOCKET).touch()


def linked(place: Path) -> None:
    listening(place.with_name("another"))
    place.symlink_to("another")


@pytest.mark.parametrize("make", [linked, lambda _place: None])
def test_a_place_that_others_can_take_is_passed_over(place: Path, make: Callable[[Path], None]) -> None:
    make(place)
    assert place in places(None)
    assert find_runtime_dir(None) != place


def test_a_directory_of_another_user_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening(place)
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    assert find_runtime_dir(None) == Path(SYSTEM_RUNTIME_DIR)


def test_ones_own_directory_is_found_anywhere(place: Path) -> None:
    listening(place)
    assert find_runtime_dir(None) == place


def test_elsewhere_the_directory_need_not_be_there_yet(place: Path) -> None:
    place.parent.chmod(0o700)
    assert find_runtime_dir(None) == place


def test_a_directory_that_is_named_is_the_only_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_runtime_dir(str(place)) == place
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(place))
    assert find_runtime_dir(None) == place
