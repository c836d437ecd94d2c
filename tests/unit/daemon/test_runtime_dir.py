"""One directory, one daemon: who may take it, and what is said to those who may not."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import threading
from pathlib import Path

import pytest

from prepserver.daemon.attach import Listener
from prepserver.daemon.runtime_dir import AlreadyRunning, Door, RuntimeDir, RuntimeDirError, holder
from tests.support.leaks import descriptors
from tests.support.waiting import PATIENCE_S


def test_it_is_made_for_its_owner_alone_and_named_in_the_lock(tmp_path: Path) -> None:
    with contextlib.closing(RuntimeDir(tmp_path / "run")) as place:
        assert place.path == tmp_path / "run"
        assert place.path.stat().st_mode & 0o777 == 0o700
        assert (place.path / "lock").read_text() == f"{os.getpid()}\n"
        assert (place.attach_socket.name, place.line_socket.name) == ("attach.sock", "line.sock")


def test_a_second_daemon_is_told_who_runs_and_what_to_do(tmp_path: Path) -> None:
    with contextlib.closing(RuntimeDir(tmp_path / "run")):
        with pytest.raises(AlreadyRunning) as e:
            RuntimeDir(tmp_path / "run")
        for said in (
            f"pid {os.getpid()}",
            str(tmp_path / "run"),
            "prepserver status",
            "prepserver stop",
            "--runtime-dir",
        ):
            assert said in str(e.value)


def test_a_refused_daemon_leaves_the_sockets_of_the_running_one(tmp_path: Path) -> None:
    with (
        contextlib.closing(RuntimeDir(tmp_path / "run")) as place,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s,
    ):
        s.bind(str(place.attach_socket))
        with pytest.raises(AlreadyRunning):
            RuntimeDir(tmp_path / "run")
        assert place.attach_socket.exists()


def test_what_a_killed_daemon_left_is_cleared_and_taken_again(tmp_path: Path) -> None:
    RuntimeDir(tmp_path / "run").close()
    for name in ("attach.sock", "line.sock"):
        (tmp_path / "run" / name).touch()
    with contextlib.closing(RuntimeDir(tmp_path / "run")) as place:
        assert sorted(p.name for p in place.path.iterdir()) == ["lock"]


def test_closing_removes_sockets_and_keeps_the_lock_file(tmp_path: Path) -> None:
    """Closing again does nothing."""
    place = RuntimeDir(tmp_path / "run")
    place.attach_socket.touch()
    place.close()
    place.close()
    assert [p.name for p in place.path.iterdir()] == ["lock"]
    assert (place.path / "lock").read_text() == ""


def test_a_directory_that_was_made_anew_keeps_its_sockets(tmp_path: Path) -> None:
    place = RuntimeDir(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with contextlib.closing(RuntimeDir(tmp_path / "run")) as newer:
        for path in (newer.attach_socket, newer.line_socket):
            path.touch()
        place.close()
        assert {path.name for path in newer.path.iterdir()} == {"attach.sock", "line.sock", "lock"}
        assert holder(newer.path) == os.getpid()
    assert holder(newer.path) is holder(tmp_path / "nowhere") is None


def test_a_successor_touches_nothing_until_the_lock_is_its_own(tmp_path: Path) -> None:
    running = RuntimeDir(tmp_path / "run")
    (running.path / "attach.sock").touch()
    before = {path.name: path.read_text() for path in running.path.iterdir()}
    successor = RuntimeDir(tmp_path / "run", replace=True)
    assert not successor.is_ours
    successor.renew_pid()
    successor.remove_attach_socket()
    successor.close()
    assert {path.name: path.read_text() for path in running.path.iterdir()} == before
    with pytest.raises(AlreadyRunning, match=r"waited 0\.02 s, but a prepserver daemon"):
        successor.take(0.02)
    end = threading.Timer(0.05, running.close)
    end.start()
    successor.take(PATIENCE_S)
    end.join()
    assert successor.is_ours
    assert (successor.path / "lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(AlreadyRunning):
        RuntimeDir(tmp_path / "run")
    successor.close()


def test_of_many_successors_one_has_the_lock(tmp_path: Path) -> None:
    """They wait while the running daemon ends; sockets of the one that was quicker stay."""
    running = RuntimeDir(tmp_path / "run")
    places = [RuntimeDir(tmp_path / "run", replace=True) for _ in range(8)]
    won: list[RuntimeDir] = []

    def succeed(place: RuntimeDir) -> None:
        is_over = False
        while not is_over:
            is_over = bool(won)  # one more attempt after that of another one
            with contextlib.suppress(AlreadyRunning):
                place.take(0.01)
                place.attach_socket.touch()
                won.append(place)
                return

    threads = [threading.Thread(target=succeed, args=(place,)) for place in places]
    for each in threads:
        each.start()
    running.close()
    for each in threads:
        each.join()
    for place in places:
        if place not in won:
            place.close()
    (place,) = won
    assert place.attach_socket.exists()
    place.close()


def test_no_descriptor_is_left_after_a_refusal(tmp_path: Path) -> None:
    with contextlib.closing(RuntimeDir(tmp_path / "run")):
        before = descriptors()
        for _ in range(5):
            with pytest.raises(AlreadyRunning):
                RuntimeDir(tmp_path / "run")
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_is_refused_even_to_a_directory_of_ours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RuntimeDirError, match="link is a link: name the directory itself"):
        RuntimeDir(tmp_path / "link")
    assert not list((tmp_path / "real").iterdir())


def test_a_lock_that_is_a_link_is_refused_its_target_untouched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "run" / "lock").symlink_to(target)
    with pytest.raises(RuntimeDirError, match="lock"):
        RuntimeDir(tmp_path / "run")
    assert target.read_text() == "precious"


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RuntimeDirError, match="run is not a directory"):
        RuntimeDir(tmp_path / "run")


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeDirError, match="deep/er: No such file"):
        RuntimeDir(tmp_path / "deep" / "er")


def test_a_disk_that_takes_no_byte_is_named(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(RuntimeDirError, match="run cannot be written to: File too large"):
            RuntimeDir(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_directory_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(RuntimeDirError, match="writable for everybody; `chmod o-w` it"):
        RuntimeDir(tmp_path / "run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_owner_is_refused_with_both_uids(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", 12345, 12345)
    with pytest.raises(RuntimeDirError, match=r"belongs to uid 12345, not to you \(uid 0\)"):
        RuntimeDir(tmp_path / "run")


@pytest.mark.skipif(os.getuid() == 0, reason="everything is root's or root may do it")
def test_a_directory_of_another_owner_is_refused() -> None:
    with pytest.raises(RuntimeDirError, match=r"belongs to uid 0"):
        RuntimeDir(Path("/"))


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 110)
    with pytest.raises(
        RuntimeDirError, match="is too long: a socket's path has at most 107 bytes, this one would have"
    ):
        RuntimeDir(long)


def test_a_path_of_exactly_the_longest_length_can_be_bound(tmp_path: Path) -> None:
    exact = tmp_path / ("x" * (107 - len("/attach.sock") - len(os.fsencode(tmp_path)) - 1))
    with contextlib.closing(RuntimeDir(exact)) as place, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(place.attach_socket))
        assert len(os.fsencode(place.attach_socket)) == 107


def test_the_first_usable_of_the_usual_places_is_taken(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREPSERVER_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    with contextlib.closing(RuntimeDir()) as place:
        assert place.path == short_path / "prepserver"
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(short_path / "mine"))
    with contextlib.closing(RuntimeDir()) as place:
        assert place.path == short_path / "mine"


def test_where_none_is_usable_each_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(tmp_path / "no" / "such"))
    with pytest.raises(RuntimeDirError, match=r"no usable runtime directory: .*no/such: No such file"):
        RuntimeDir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a directory of another group")
def test_a_setgid_directory_gives_sockets_their_group(tmp_path: Path) -> None:
    user, group = 60990, 60991
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, user, group)
    run.chmod(0o2750)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o011)
    pid = os.fork()
    if pid == 0:  # who is not in the group, and so may not chown to it
        code = 1
        with contextlib.suppress(Exception):
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            with contextlib.closing(RuntimeDir(run, group=group)) as place:
                Listener(place.attach_socket, Door(group=group)).close()
                code = 0 if place.attach_socket.stat().st_gid == group else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
