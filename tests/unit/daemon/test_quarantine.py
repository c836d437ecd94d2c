"""Quarantined samples on disk."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from prepserver.daemon import quarantine
from prepserver.daemon.quarantine import Quarantine, clear, entries, file_name

SOURCE = "ab" * 32


def test_a_sample_is_known_to_the_next_daemon_with_its_path(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "q")
    kept.add(SOURCE, 5, "workers crashed on it", "/data")
    kept.name(SOURCE, 5, "x/five.jpg: quarantined: workers died or hung on it")
    kept.name(SOURCE, 6, "x/six.jpg: cut off")
    (entry,) = Quarantine(tmp_path / "q").of(SOURCE)
    assert (entry.index, entry.path, entry.reason) == (5, "x/five.jpg", "workers crashed on it")
    assert entry.dataset == "/data"
    assert entry.time.startswith("20")
    assert Quarantine(tmp_path / "q").of("another") == []
    assert [path.name for path in (tmp_path / "q").iterdir()] == [file_name(entry)]


def test_a_cleared_sample_is_forgotten_by_a_daemon_that_runs(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path)
    kept.add(SOURCE, 5, "r", "")
    kept.add(SOURCE, 6, "r", "")
    assert {entry.index for entry in kept.of(SOURCE)} == {5, 6}
    clear(tmp_path, [entry for entry in entries(tmp_path) if entry.index == 5])
    os.utime(tmp_path, ns=(1, 1))  # the folder's time may not have moved within one tick of the clock
    assert {entry.index for entry in kept.of(SOURCE)} == {6}


def test_without_a_disk_it_holds_for_the_daemons_life(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    kept = Quarantine(tmp_path / "file" / "q")
    kept.add(SOURCE, 5, "r", "")
    assert {entry.index for entry in kept.of(SOURCE)} == {5}
    assert "cannot write the quarantine" in caplog.text


@pytest.mark.parametrize("has_disk", [True, False])
def test_there_is_a_most_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_disk: bool
) -> None:
    monkeypatch.setattr(quarantine, "MAX_ENTRIES", 2)
    if not has_disk:
        (tmp_path / "q").write_text("")
    kept = Quarantine(tmp_path / "q")
    for index in range(3):
        kept.add(SOURCE, index, "r", "")
        kept.name(SOURCE, index, f"{index}.jpg: quarantined: r")
    assert [(entry.index, entry.path) for entry in kept.of(SOURCE)] == [(0, "0.jpg"), (1, "1.jpg")]
    assert len(entries(tmp_path / "q")) == 2 * has_disk
    assert "2 samples are quarantined already: sample 2 is not remembered" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe", b"[]", b"null", b'"x"', b"{}", b'{"source":1,"index":2,"reason":"","time":""}', b"[" * 20000,
        b'{"source":"s","index":-1,"reason":"","time":""}', bytes(range(128, 128 + 100)),
    ],
)  # fmt: skip
def test_garbage_is_passed_over(tmp_path: Path, data: bytes) -> None:
    kept = Quarantine(tmp_path)
    kept.add(SOURCE, 5, "r", "")
    (tmp_path / "garbage.json").write_bytes(data)
    (tmp_path / "folder.json").mkdir()
    assert [entry.index for entry in entries(tmp_path)] == [5]


def test_an_entry_under_another_name_than_its_own_does_not_count(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path)
    kept.add(SOURCE, 5, "r", "")
    (entry,) = entries(tmp_path)
    (tmp_path / "copy.json").write_text(json.dumps(dataclasses.asdict(dataclasses.replace(entry, index=9))))
    assert entries(tmp_path) == [entry]


def test_a_sample_may_be_bad_for_one_pipeline(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path)
    kept.add(SOURCE, 5, "too slow", "/data", "cd" * 32, "Decode, Resize")
    kept.add(SOURCE, 5, "crashed", "/data")
    kept.name(SOURCE, 5, "x/five.jpg: quarantined for this pipeline: workers died")
    found = {(entry.pipeline, entry.ops, entry.path, entry.reason) for entry in Quarantine(tmp_path).of(SOURCE)}
    assert found == {("cd" * 32, "Decode, Resize", "x/five.jpg", "too slow"), ("", "", "x/five.jpg", "crashed")}
    clear(tmp_path, entries(tmp_path))
    assert entries(tmp_path) == []


def test_what_an_older_release_kept_is_bad_for_all(tmp_path: Path) -> None:
    old = {
        "source": SOURCE,
        "index": 5,
        "reason": "r",
        "time": "2026-11-20T00:00:00+00:00",
        "path": "x",
        "dataset": "/",
    }
    (tmp_path / f"{SOURCE[:32]}-5.json").write_text(json.dumps(old))
    (entry,) = entries(tmp_path)
    assert (entry.index, entry.pipeline, entry.path) == (5, "", "x")
