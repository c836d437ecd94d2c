"""The daemon's side of the audit: what the loop says is in the log, and a bad disk harms nobody."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from prepserver.audit import logfile
from prepserver.audit.records import Rows
from prepserver.audit.stays import Stay, chains
from prepserver.daemon import ledger as room
from prepserver.daemon.ledger import Ledger
from prepserver.protocol.messages import Attach
from prepserver.telemetry.history import Slice, joined, paths, read

ROWS = Rows({"source": "SyntheticImages"}, "d", "/i", 100, "cyclic", 0, [])
ATTACH = Attach("train", {}, "cyclic", 0, [], batch_size=10, drop_last=False, rank=0, world_size=1)


def begin(ledger: Ledger, cursor: int = 1) -> None:
    ledger.attached(cursor, 7, ATTACH, ROWS, epoch_start=0, position=0, first=0, ring=64)


def trainings(folder: Path) -> list[list[Stay]]:
    found = logfile.read(folder, "train", 7)
    trainings, wrong = chains(found.records)
    assert (found.wrong, wrong) == ([], [])
    return trainings


def stays(folder: Path) -> list[Stay]:
    (chain,) = trainings(folder)
    return chain


def test_what_the_loop_says_is_in_the_log(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "audit")
    begin(ledger)
    ledger.announced(1, 20, [(3, 30, "three: bad")])
    ledger.announced(1, 20, [(3, 30, "three: bad")])
    ledger.announced(1, 30, [(3, 30, "three: bad"), (25, 5, "x" * 5000)])
    ledger.released(1, 10)
    ledger.announced(1, 60, [])
    ledger.left(1, 50)
    ledger.left(1)
    ledger.announced(1, 80, [])
    begin(ledger, 2)
    ledger.close()
    first, second = (stay for chain in trainings(tmp_path / "audit") for stay in chain)
    assert (first.told, first.back) == (60, 10)
    assert first.bad == {3: (30, "three: bad"), 25: (5, "x" * 512)}
    assert first.left is not None
    assert first.left.at == 50
    assert second.left is not None
    assert second.left.at is None
    assert (second.attached.batch_size, second.attached.ring, second.rows) == (10, 64, ROWS)


def test_the_report_has_every_image_of_a_short_run(tmp_path: Path) -> None:
    """From before the first second that is counted, and from after the last one."""
    ledger = Ledger(tmp_path)
    for cursor in (1, 2):
        attach = dataclasses.replace(ATTACH, rank=cursor - 1, world_size=2)
        ledger.attached(cursor, 7, attach, ROWS, epoch_start=0, position=0, first=10 * (cursor - 1), ring=64)
    ledger.released(1, 40)
    ledger.counted(1, Slice(100.0, 1.0, {"own": 1.0}))
    ledger.left(1, 60)
    ledger.released(2, 30)
    ledger.left(2)
    ledger.close()
    (track,) = read(paths(logfile.path_of(tmp_path, "train", 7))[0]).tracks.values()
    assert joined(track.slices).sums["images"] == 30 + 10
    assert joined(track.slices).span_s >= 1.0


def test_a_thousand_batches_take_one_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    begin(ledger)
    for upto in range(10, 10_000, 10):
        ledger.announced(1, upto, [])
        ledger.released(1, upto)
    ledger.close()
    (stay,) = stays(tmp_path)
    assert (stay.told, stay.back) == (9990, 9990)
    assert logfile.path_of(tmp_path, "train", 7).stat().st_size < 1200


def test_too_many_bad_rows_are_cut_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_BAD_OF_STAY", 100)
    ledger = Ledger(tmp_path)
    ledger.attached(1, 7, ATTACH, ROWS, epoch_start=0, position=0, first=0, ring=64)
    ledger._stays[1].bad_left = 100
    ledger.announced(1, 90, [(p, p, "r") for p in range(90)])
    ledger.announced(1, 200, [(p, p, "r") for p in range(90, 150)])
    ledger.announced(1, 300, [(p, p, "r") for p in range(200, 250)])
    ledger.close()
    (stay,) = stays(tmp_path)
    assert sorted(stay.bad) == list(range(100))
    assert stay.more_bad


def test_a_disk_that_takes_nothing_is_one_warning_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    ledger = Ledger(tmp_path / "file" / "audit")
    begin(ledger)
    for upto in range(10, 100, 10):
        ledger.announced(1, upto, [(upto, 1, "r")])
        ledger.released(1, upto)
    ledger.left(1)
    ledger.close()
    assert caplog.text.count("cannot be written") == 1
    assert logfile.jobs(tmp_path / "file" / "audit") == []


def test_reports_leave_room_for_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a disk does not answer, seconds of many ranks pile up; that a rank has left must not be lost for them."""
    answers = threading.Event()

    class Slow(logfile.LogFile):
        def __init__(self, *of: Any) -> None:
            answers.wait()
            super().__init__(*of)

    monkeypatch.setattr(room, "LogFile", Slow)
    monkeypatch.setattr(room, "_MOST_QUEUED", 20)
    ledger = Ledger(tmp_path)
    begin(ledger)
    for second in range(100):
        ledger.counted(1, Slice(second, 1.0, {"images": 1.0}))
    ledger.left(1, 50)
    answers.set()
    ledger.close()
    (stay,) = stays(tmp_path)
    assert stay.left is not None
    assert "will have gaps" not in caplog.text


def test_progress_that_was_dropped_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    begin(ledger)
    with monkeypatch.context() as full:
        full.setattr(room, "_MOST_QUEUED", 0)
        ledger.released(1, 50)
    ledger.released(1, 60)
    ledger._stays.clear()  # as in a daemon that is killed, nobody says that the rank has left
    ledger.close()
    (stay,) = stays(tmp_path)
    assert stay.back == 60


def test_a_log_that_is_full_ends_and_its_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logfile, "MAX_FILE_BYTES", 1500)
    ledger = Ledger(tmp_path)
    begin(ledger)
    for upto in range(10, 1000, 10):
        ledger.announced(1, upto, [(upto - 1, 1, "r" * 200)])
    ledger.left(1)
    ledger.close()
    (stay,) = stays(tmp_path)
    assert 0 < len(stay.bad) < 10
    assert caplog.text.count("cannot be written") == 1
