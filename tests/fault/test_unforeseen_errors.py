"""An unexpected error while the daemon serves one client costs only that client its answer or its connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import Joining, PrepClient, PrepClientError, SyntheticImages
from prepserver.cli import exits
from tests.support import faulty_daemon
from tests.support.clients import OPS, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.honest import SOURCE, SPEC, honest_reader
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault

OTHER: dict[str, Any] = {**SPEC, "seed": 8}  # a stream of its own: nobody waits for anybody


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are ordered."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def shared_server(faults: Path) -> Iterator[Server]:
    """A daemon with faults."""
    with Server(workers=1, env={"FAULTS": str(faults)}, program=[faulty_daemon.__file__]) as server:
        yield server


@pytest.fixture
def order(server: Server, faults: Path) -> Iterator[Callable[[str], None]]:
    """Orders a fault. In the end it has struck, the daemon has said so once, and an honest client noticed nothing."""
    ordered: list[Path] = []

    def strike(name: str) -> None:
        for _ in range(2):
            server.status()  # what honest clients have said before is read by now
        ordered.append(faults / name)
        ordered[-1].touch()

    before = server.log()
    with honest_reader(server) as read_on:
        yield strike
        read_on()
    said = server.log().removeprefix(before)
    (fault,) = ordered
    assert not fault.exists()
    assert said.count("ERROR") == 1, said
    if fault.name not in faulty_daemon.LOST:
        assert said.count("Traceback") == 1
        assert f"RuntimeError: a fault: {fault.name}" in said


def test_status_answers_with_the_error(server: Server, order: Callable[[str], None]) -> None:
    order("status")
    done = cli("status", "--runtime-dir", str(server.runtime_dir))
    assert (done.returncode, done.stdout) == (exits.FAILED, "")
    assert "RuntimeError: a fault: status" in done.stderr
    assert "log" in done.stderr
    assert cli("status", "--runtime-dir", str(server.runtime_dir)).returncode == exits.OK


@pytest.mark.parametrize("fault", ["take in", "receive", "line", "check", "admit", "admitted", "ledger"])
def test_a_question_is_answered_with_the_error(server: Server, order: Callable[[str], None], fault: str) -> None:
    with PrepClient(SOURCE, OPS, fields="dict", runtime_dir=server.runtime_dir, **OTHER) as client:
        order(fault)
        with pytest.raises(PrepClientError, match=f"RuntimeError: a fault: {fault}"):
            len(client)
        assert read(client) == inline_rows(SOURCE, **OTHER)


@pytest.mark.parametrize("fault", ["receive", "line", "release"])
def test_a_job_comes_back_and_loses_no_row(server: Server, order: Callable[[str], None], fault: str) -> None:
    with PrepClient(SOURCE, OPS, fields="dict", runtime_dir=server.runtime_dir, **OTHER) as client:
        batches = iter(client)
        rows = rows_of(next(batches))
        order(fault)
        for batch in batches:
            rows += rows_of(batch)
        assert rows == inline_rows(SOURCE, **OTHER)


def test_a_job_not_told_of_its_new_ring_gets_no_row_of_the_old(server: Server, order: Callable[[str], None]) -> None:
    source, spec = SyntheticImages(2000, 32), {**OTHER, "joining": Joining(lag="detach")}
    where: dict[str, Any] = {"fields": "dict", "runtime_dir": server.runtime_dir}
    with PrepClient(source, OPS, **where, **spec) as slow, PrepClient(source, OPS, **where, **spec) as quick:
        slow_batches, quick_batches = iter(slow), iter(quick)
        rows = rows_of(next(slow_batches))
        order("moved")
        expected = inline_rows(source, **spec)
        assert [row for batch in quick_batches for row in rows_of(batch)] == expected
        for batch in slow_batches:
            rows += rows_of(batch)
        assert rows == expected


def test_rows_that_a_dropped_client_reads_stay_as_they_are(
    server: Server, order: Callable[[str], None], faults: Path
) -> None:
    """Its job parts from the others like the job of a stopped client."""
    source, spec = SyntheticImages(2000, 32), {**OTHER, "joining": Joining(lag="detach")}
    where: dict[str, Any] = {"fields": "dict", "runtime_dir": server.runtime_dir}
    expected = inline_rows(source, **spec)
    with (
        PrepClient(source, OPS, zero_copy=True, **where, **spec) as slow,
        PrepClient(source, OPS, **where, **spec) as quick,
    ):
        slow_batches, quick_batches = iter(slow), iter(quick)
        rows = rows_of(next(slow_batches))
        order("release")
        lent = next(slow_batches)
        wait_until(lambda: not (faults / "release").exists())
        assert [row for batch in quick_batches for row in rows_of(batch)] == expected
        rows += rows_of(lent)
        for batch in slow_batches:
            rows += rows_of(batch)
        assert rows == expected
