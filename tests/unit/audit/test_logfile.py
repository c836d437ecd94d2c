"""A job's log on disk: bounded, locked, and readable whatever happened to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepserver.audit import logfile
from prepserver.audit.logfile import LogFile
from prepserver.audit.records import Job, Left, Progress, Record, to_line


def records(folder: Path, job: str = "a") -> list[list[Record]]:
    found = logfile.read(folder, job, 7)
    assert found.wrong == []
    return [[record for _, record in each] for each in found.records]


def test_a_log_is_written_on_after_it_was_closed(tmp_path: Path) -> None:
    folder = tmp_path / "x" / "audit"
    log = LogFile(folder, "a", 7)
    slot = log.slot(Progress(1, 0, 0))
    log.rewrite(slot, Progress(1, 5, 3))
    log.close()
    log = LogFile(folder, "a", 7)
    assert log.append(Left(1, "t")) == 2
    log.close()
    assert records(folder) == [[Job(1, "a", 7), Progress(1, 5, 3), Left(1, "t")]]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_line_that_was_cut_off_is_written_over(tmp_path: Path) -> None:
    LogFile(tmp_path, "a", 7).close()
    path = logfile.path_of(tmp_path, "a", 7)
    with path.open("ab") as f:
        f.write(to_line(1, Left(1, "t"))[:20])
    assert logfile.read(tmp_path, "a", 7).wrong == [f"{path.name}: line 2: it has no end"]
    log = LogFile(tmp_path, "a", 7)
    log.append(Left(2, "u"))
    log.close()
    assert records(tmp_path) == [[Job(1, "a", 7), Left(2, "u")]]


def test_two_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "a", 7)
    with pytest.raises(OSError, match="another daemon"):
        LogFile(tmp_path, "a", 7)
    log.close()
    LogFile(tmp_path, "a", 7).close()


def test_a_large_log_is_put_aside_once_and_read_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "ASIDE_BYTES", 100)
    for time in ("one", "two", "three"):
        log = LogFile(tmp_path, "a", 7)
        log.append(Left(1, time * 30))
        log.close()
    assert [each[1] for each in records(tmp_path)] == [Left(1, "two" * 30), Left(1, "three" * 30)]


def test_a_log_that_another_daemon_takes_stays_open_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps, as a large one is put aside."""
    monkeypatch.setattr(logfile, "ASIDE_BYTES", 100)
    log = LogFile(tmp_path, "a", 7)
    log.append(Left(1, "t" * 90))
    log.close()
    others: list[LogFile] = []

    class Late(LogFile):
        def _open(self) -> int:
            if hasattr(self, "_fd"):  # the second time, after it was put aside
                others.append(LogFile(tmp_path, "a", 7))
            return super()._open()

    with pytest.raises(OSError, match="another daemon"):
        Late(tmp_path, "a", 7)
    others[0].append(Left(1, "u"))
    others[0].close()
    assert records(tmp_path)[1][1:] == [Left(1, "u")]


def test_a_log_never_grows_past_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_FILE_BYTES", 1000)
    log = LogFile(tmp_path, "a", 7)
    for _ in range(4):
        log.append(Left(1, "t" * 100))
    with pytest.raises(OSError, match="limit of a log"):
        log.append(Left(1, "t" * 800))
    log.close()
    assert logfile.path_of(tmp_path, "a", 7).stat().st_size <= 1000
    assert len(records(tmp_path)[0]) > 3


def test_the_logs_written_longest_ago_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_JOBS", 2)
    for age, job in enumerate("abc"):
        LogFile(tmp_path, job, 7).close()
        os.utime(logfile.path_of(tmp_path, job, 7), ns=(age * 10**9, age * 10**9))
    LogFile(tmp_path, "d", 7).close()
    assert {job.job for job in logfile.jobs(tmp_path)} == {"c", "d"}


def test_a_sixteenth_of_the_logs_goes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_JOBS", 32)
    for k in range(32):
        LogFile(tmp_path, f"{k}", 7).close()
    assert len(logfile.jobs(tmp_path)) == 32
    LogFile(tmp_path, "one more", 7).close()
    assert len(logfile.jobs(tmp_path)) == 30


def test_of_equal_users_those_whose_logs_are_oldest_lose_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_JOBS", 32)
    for uid in range(32):
        LogFile(tmp_path, "a", uid).close()
        os.utime(logfile.path_of(tmp_path, "a", uid), ns=(uid * 10**9, uid * 10**9))
    LogFile(tmp_path, "a", 100).close()
    assert {job.uid for job in logfile.jobs(tmp_path)} == {*range(3, 32), 100}


def test_many_logs_of_one_user_evict_no_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "MAX_JOBS", 4)
    for age, (job, uid) in enumerate([("a", 7), ("b", 8), ("c", 8)]):
        LogFile(tmp_path, job, uid).close()
        os.utime(logfile.path_of(tmp_path, job, uid), ns=(age * 10**9, age * 10**9))
    for k in range(20):
        LogFile(tmp_path, f"flood {k}", 9).close()
    kept = {(job.job, job.uid) for job in logfile.jobs(tmp_path)}
    assert {("a", 7), ("b", 8)} <= kept
    assert len(kept) == 4


def test_a_foreign_file_in_a_logs_place_is_put_aside(tmp_path: Path) -> None:
    path = logfile.path_of(tmp_path, "a", 7)
    path.write_bytes(os.urandom(500))
    LogFile(tmp_path, "a", 7).close()
    assert path.read_bytes() == to_line(0, Job(1, "a", 7))
    assert logfile.read(tmp_path, "a", 7).wrong != []


@pytest.mark.parametrize("job", ["../../etc/passwd", "", ".", "a b\n", "ü" * 256, "x/y"])
def test_any_name_of_a_job_is_a_file_in_the_folder(tmp_path: Path, job: str) -> None:
    LogFile(tmp_path, job, 7).close()
    assert logfile.path_of(tmp_path, job, 7).parent == tmp_path
    assert [found.job for found in logfile.jobs(tmp_path)] == [job]


def test_jobs_of_two_users_have_logs_of_their_own(tmp_path: Path) -> None:
    for uid in (7, 8):
        LogFile(tmp_path, "a", uid).close()
    assert {job.uid for job in logfile.jobs(tmp_path)} == {7, 8}


def test_a_name_of_a_job_may_be_any_bytes(tmp_path: Path) -> None:
    """As the command line gives them."""
    assert logfile.path_of(tmp_path, "\udcff", 7) != logfile.path_of(tmp_path, "\udcfe", 7)
