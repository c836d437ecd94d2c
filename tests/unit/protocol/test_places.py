"""Where daemon and client meet: one rule, best place first."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Any

import pytest

from prepserver.protocol import places
from prepserver.protocol.places import is_named, runtime_dirs, why_refused


def test_the_named_directory_is_the_only_one() -> None:
    assert runtime_dirs({"PREPSERVER_RUNTIME_DIR": "/x", "XDG_RUNTIME_DIR": "/run/user/7"}, 7) == ["/x"]


def test_the_session_comes_before_the_system_and_tmp_last() -> None:
    assert runtime_dirs({"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == [
        "/run/user/7/prepserver", "/run/prepserver", "/tmp/prepserver-7",
    ]  # fmt: skip


def test_without_a_session_the_system_place_comes_first() -> None:
    assert runtime_dirs({"PREPSERVER_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": ""}, 0) == [
        "/run/prepserver", "/tmp/prepserver-0",
    ]  # fmt: skip


def test_a_place_is_named_by_an_argument_or_the_environment() -> None:
    assert is_named("/x", {})
    assert is_named(None, {"PREPSERVER_RUNTIME_DIR": "/x"})
    assert not is_named(None, {"PREPSERVER_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": "/y"})


NOBODY = 4_000_000_001
"""A number that no user and no group has."""


JOIN = "Ask its operator to add you to that group"


@pytest.mark.parametrize(
    ("mode", "gid", "said"),
    [
        (0o660, 77, f"group lab users, mode 660. {JOIN} (`usermod -aG 'lab users' NAME`), and log in again"),
        (0o660, NOBODY, f"gid {NOBODY}, mode 660. {JOIN}, and log in again"),
        (0o660, 0, "group root, mode 660"),
        (0o600, 77, "group lab users, mode 600"),
    ],
)
def test_who_may_open_a_socket_is_said(mode: int, gid: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's own name is in the command; nobody should join root's group."""

    def group(number: int) -> Any:
        if number == NOBODY:
            raise KeyError
        return grp.struct_group(({0: "root", 77: "lab users"}[number], "x", number, []))

    def status(path: str) -> os.stat_result:
        if path == "/shut/s":
            raise PermissionError
        return os.stat_result((mode if path.endswith("/s") else 0o040700, 0, 0, 0, 5, gid, 0, 0, 0, 0))

    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ann", "x", uid, 0, "", "/", "/bin/sh")))
    places.user_name.cache_clear()
    assert why_refused("/run/x", "s", status) == f"the socket belongs to user ann, {said}"
    assert why_refused("/shut", "s", status).startswith("the directory belongs to user ann, ")
    places.user_name.cache_clear()


def test_a_place_that_shows_nothing_is_said_to() -> None:
    def status(_path: str) -> os.stat_result:
        raise PermissionError

    assert why_refused("/run/x", "s", status) == "nobody but its owner can look into /run/x"
    places.user_name.cache_clear()
    assert places.user_name(NOBODY) == ""
    places.user_name.cache_clear()
