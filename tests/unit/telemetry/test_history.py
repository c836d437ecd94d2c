"""How a run went: sums of stretches of time in a file that does not grow."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from prepserver.telemetry import history
from prepserver.telemetry.history import HistoryFile, Slice, figures, gathered, joined, paths, read

RUN = {"job": "train", "since": "2026-01-01T00:00:00+00:00"}
READS = {"source": {"source": "SyntheticImages"}, "n": 100}
VERDICT: dict[str, Any] = {"verdict": "healthy", "kind": "healthy", "next": "", "why": "rows were ready"}


def opened(folder: Path, pid: int = 7, *, fresh: bool = True, **run: Any) -> HistoryFile:
    return HistoryFile(folder / "train.log", {**RUN, **run}, pid, fresh=fresh)


def written(file: HistoryFile, seconds: int, start_s: float = 1000.0, pid: int = 7, images: float = 5) -> None:
    track = file.begin(READS, pid)
    for k in range(seconds):
        file.add(track, Slice(start_s + k, 1.0, {"images": images, "wait": 0.25, "own": 0.75}), None)


def test_a_week_takes_no_more_room_than_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_SLICES", 36)
    file, seconds = opened(tmp_path), 3000
    written(file, seconds)
    file.close()
    (track,) = read(paths(tmp_path / "train.log")[0]).tracks.values()
    assert 18 <= len(track.slices) <= 36
    spans = [each.span_s for each in track.slices[:-1]]
    assert max(spans) <= 2 * min(spans)  # as fine at its end as at its beginning
    assert joined(track.slices).span_s == seconds
    assert figures(track.slices)["samples/s"] == 5
    assert figures(track.slices)["loading"] == 0.25
    assert figures(track.slices)["GPU busy"] is None
    ends = [each.at_s + each.span_s for each in track.slices]
    assert ends[:-1] == [each.at_s for each in track.slices[1:]]


def test_ranks_of_different_verdicts_take_no_more_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is judged every ten seconds, and the verdict that was said last is another rank's."""
    monkeypatch.setattr(history, "_MAX_OTHER_LINES", 20)
    file, others = opened(tmp_path), {**VERDICT, "verdict": "data-bound (read)"}
    track = file.begin(READS, 7)
    for k in range(200):
        for verdict in (VERDICT, others):
            file.add(track, Slice(1000.0 + k, 1.0, {"images": 5.0}), verdict)
    file.close()
    path = paths(tmp_path / "train.log")[0]
    found = read(path).tracks[track]
    assert len(found.slices) == 200
    assert set(found.verdicts) == {"healthy", "data-bound (read)"}
    assert path.read_bytes().count(b'"verdict":') <= 2 * 30


def test_ranks_of_a_job_add_up(tmp_path: Path) -> None:
    file = opened(tmp_path)
    track = file.begin(READS, 7)
    assert file.begin(READS, 8) == track != file.begin({**READS, "n": 5}, 8)
    for at_s in (10.0, 11.0):
        for images in (3, 4):
            file.add(track, Slice(at_s, 1.0, {"images": images, "wait": 1.0}), VERDICT)
    file.close()
    found = read(paths(tmp_path / "train.log")[0])
    assert found.pids == [7, 8]
    assert [(each.at_s, each.span_s, each.sums) for each in found.tracks[track].slices] == [
        (10.0, 1.0, {"images": 7.0, "wait": 2.0}), (11.0, 1.0, {"images": 7.0, "wait": 2.0}),
    ]  # fmt: skip
    assert found.tracks[track].verdicts == {"healthy": VERDICT}


def test_a_clock_that_is_set_back_does_not_stop_the_report(tmp_path: Path) -> None:
    file = opened(tmp_path)
    track = file.begin(READS, 7)
    for at_s in (10_000.0, *range(100, 120)):
        file.add(track, Slice(at_s, 1.0, {"images": 1}), None)
    found = read(paths(tmp_path / "train.log")[0])  # while the run lasts
    assert max(each.at_s for each in found.tracks[track].slices if each.at_s < 10_000) >= 110


def test_a_run_goes_on_and_another_one_leaves_the_last_beside_it(tmp_path: Path) -> None:
    for pid, fresh, images in ((7, True, 1), (7, True, 2), (9, False, 3), (10, True, 4), (11, True, 5), (12, True, 6)):
        file = opened(tmp_path, pid, fresh=fresh, version=str(pid))
        written(file, 2, start_s=100.0 * pid, pid=pid, images=images)
        file.close()
    runs = [read(path) for path in paths(tmp_path / "train.log")]
    assert [joined(run.by_images[0].slices).sums["images"] for run in runs] == [12, 10, 8]
    assert [run.run["version"] for run in runs] == ["12", "11", "10"]
    assert len(list(tmp_path.iterdir())) == history.RUNS_KEPT
    # a rank that comes back, or another process of the run
    file = opened(tmp_path, 13, fresh=False, since="later")
    file.close()
    assert read(paths(tmp_path / "train.log")[0]).run["since"] == RUN["since"]


def test_what_a_killed_daemon_wrote_is_read(tmp_path: Path) -> None:
    written(opened(tmp_path), 100)
    path = paths(tmp_path / "train.log")[0]
    with path.open("ab") as file:
        file.write(b'{"track": 5}\nnull\n\xff\xfe\n{"at": 1, "for": 1, "sums": {}, "track"')
    found = read(path)
    (track,) = found.tracks.values()
    assert 90 <= len(track.slices) <= 100
    again = opened(tmp_path)  # and the broken line is gone
    written(again, 3, 2000.0)
    again.close()
    (track,) = read(path).tracks.values()
    assert joined(track.slices).span_s >= 93


def test_slices_are_gathered_up_to_a_pause() -> None:
    slices = [Slice(at, 1.0, {"images": 1}) for at in (*range(100), *range(500, 600))]
    found = gathered(slices, 20)
    assert len(found) == 20
    assert [each.sums["images"] for each in found] == [each.span_s for each in found] == [10.0] * 20
    assert [each.at_s for each in found[9:11]] == [90, 500]
    assert [each.span_s for each in gathered(slices, 1000, least_s=50.0)] == [50.0] * 4
    assert gathered([], 10) == []


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            opened(tmp_path, host="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_tidied_up_stays_away(tmp_path: Path) -> None:
    """Nobody would find it again: its log is gone."""
    file = opened(tmp_path)
    written(file, 3)
    paths(tmp_path / "train.log")[0].unlink()
    with pytest.raises(FileNotFoundError):
        file.close()
    assert list(tmp_path.iterdir()) == []
