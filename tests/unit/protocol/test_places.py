"""Where daemon and client meet: one rule, best place first."""

from __future__ import annotations

from prepserver.protocol.places import runtime_dirs


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
