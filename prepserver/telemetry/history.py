"""How a run went: a job's counters second by second, in a file of bounded size beside its log.

A slice is a span of time with the sums that grew in it, so two slices are joined by adding their sums. At first each
is one second long; when a file holds `MAX_SLICES`, neighbours are joined, and slices are twice as long from then on.
One process at a time writes a file, the one that holds the lock on the job's log; any process may read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_SLICES = 3600
"""Slices in a file: an hour of seconds, or a week of slices of four minutes; less than a megabyte."""

RUNS_KEPT = 3  # the last run of a job and two runs before it

_MAX_VERDICTS = 16
_MAX_TRACKS = 64
_MAX_PIDS = 256
_MAX_OTHER_LINES = 500  # lines other than slices, after which a file is rewritten without superseded verdicts
_FLUSH_S = 5.0  # at most this much, and a slice, is lost when a daemon is killed


@dataclass(slots=True)
class Slice:
    """A span of time."""

    at_s: float  # when it began, in seconds of UTC since 1970
    span_s: float  # how long it is
    # What grew in it: ``images``, and seconds: of the ranks' loops ``wait``, ``copy`` and ``own``; of the workers
    # ``busy`` and ``workers`` (all their time); of the job's GPUs ``gpu`` (busy) and ``gpus`` (measured); of the ranks
    # ``ranks`` and ``ring`` (times its fill); of workers ``stage NAME``; and ``verdict TITLE``.
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, sums: Mapping[str, float]) -> None:
        """Adds sums that grew in the same time."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def named(self, prefix: str) -> dict[str, float]:
        """The sums whose names begin with `prefix`, by the rest of the name, the largest first."""
        found = {name[len(prefix) :]: value for name, value in self.sums.items() if name.startswith(prefix)}
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def share(self, part: str, *whole: str) -> float | None:
        """The sum `part` as a fraction of all of `whole`; None if those are 0."""
        total = sum(self.sums.get(name, 0.0) for name in whole)
        return self.sums.get(part, 0.0) / total if total > 0 else None

    @property
    def images_per_s(self) -> float:
        """Images of all ranks per second."""
        return self.sums.get("images", 0.0) / self.span_s if self.span_s > 0 else 0.0


def joined(slices: Iterable[Slice]) -> Slice:
    """The slices as one; its length is the sum of their lengths, without gaps."""
    found = Slice(0.0, 0.0)
    for each in slices:
        found.at_s = found.at_s or each.at_s
        found.span_s += each.span_s
        found.add(each.sums)
    return found


def gathered(slices: Sequence[Slice], most: int, least_s: float = 0.0) -> list[Slice]:
    """The slices joined into at most `most`, none shorter than `least_s` except before a pause."""
    if not slices:
        return []
    step_s = max(least_s, sum(each.span_s for each in slices) / most)
    found: list[list[Slice]] = []
    long_s = 0.0
    for each in slices:
        is_pause = found and each.at_s - found[-1][-1].at_s - found[-1][-1].span_s > 2 * step_s
        if not found or is_pause or long_s + each.span_s / 2 >= step_s:
            found.append([])
            long_s = 0.0
        found[-1].append(each)
        long_s += each.span_s
    return [joined(part) for part in found]


def figures(slices: Iterable[Slice]) -> dict[str, float | None]:
    """The main figures by name; shares are fractions, None if unknown."""
    whole = joined(slices)
    loop = ("wait", "copy", "own")
    return {
        "samples/s": whole.images_per_s,
        "loading": whole.share("wait", *loop),
        "copying": whole.share("copy", *loop),
        "computing": whole.share("own", *loop),
        "GPU busy": whole.share("gpu", "gpus"),
        "workers busy": whole.share("busy", "workers"),
        "ring filled": whole.share("ring", "ranks"),
        "samples": whole.sums.get("images", 0.0),
        "duration": whole.span_s,
    }


@dataclass(slots=True)
class Track:
    """One dataset that a job reads; training and validation of one script are two."""

    reads: dict[str, Any]  # source, pipeline, order and so on
    slices: list[Slice] = field(default_factory=list)  # its counters over time
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last verdict for each title


@dataclass(slots=True)
class History:
    """One run of a job."""

    run: dict[str, Any] = field(default_factory=dict)  # its job, and the daemon and machine that it ran on
    pids: list[int] = field(default_factory=list)  # processes of its ranks
    tracks: dict[str, Track] = field(default_factory=dict)  # by name

    @property
    def by_images(self) -> list[Track]:
        """The tracks with slices, the one with most images first."""
        read = [track for track in self.tracks.values() if track.slices]
        return sorted(read, key=lambda track: -joined(track.slices).sums.get("images", 0.0))

    def take(self, line: Mapping[str, Any]) -> None:
        """Takes a line of a file."""
        match line:
            case {"run": dict(run)}:
                self.run = run
            case {"pid": int(pid)}:
                self.pids = [*self.pids, pid][-_MAX_PIDS:]
            case {"track": str(name), "reads": dict(reads)} if len(self.tracks) < _MAX_TRACKS:
                self.tracks.setdefault(name, Track(reads)).reads = reads
            case {"track": str(name), "verdict": dict(verdict)} if name in self.tracks:
                verdicts = self.tracks[name].verdicts
                verdicts.pop(str(verdict["verdict"]), None)
                verdicts[str(verdict["verdict"])] = verdict
                if len(verdicts) > _MAX_VERDICTS:
                    del verdicts[next(iter(verdicts))]
            case {"track": str(name), "at": float(at_s) | int(at_s), "for": float(span_s) | int(span_s),
                  "sums": dict(sums)} if name in self.tracks:  # fmt: skip
                self.tracks[name].slices.append(Slice(at_s, span_s, {str(k): float(v) for k, v in sums.items()}))
            case _:
                pass

    def lines(self) -> Iterable[dict[str, Any]]:
        """All of it as lines of a file."""
        yield {"run": self.run}
        yield from ({"pid": pid} for pid in self.pids)
        for name, track in self.tracks.items():
            yield {"track": name, "reads": track.reads}
            yield from ({"track": name, "verdict": verdict} for verdict in track.verdicts.values())
            yield from (_line(name, each) for each in track.slices)


def paths(log: Path) -> list[Path]:
    """Paths of the runs of the job with that log, the last run first."""
    return [log.with_suffix(f".run{number}") for number in range(RUNS_KEPT)]


def read(path: Path) -> History:
    """A run, without damaged lines, such as the last one if its daemon was killed."""
    found = History()
    with path.open("rb") as file:
        for line in file:
            try:
                found.take(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
    return found


class HistoryFile:
    """The run of a job (see `History`), open for writing beside the job's log.

    `pid` is the process of the rank that attached. If that rank starts from the beginning, `fresh`, it is a new run,
    unless its process was in the last.

    Raises:
        OSError: The file cannot be written; all methods raise it.
    """

    def __init__(self, log: Path, run: dict[str, Any], pid: int, *, fresh: bool) -> None:
        self._paths = paths(log)
        self._path = self._paths[0]
        self._buffer: list[dict[str, Any]] = []
        self._open: dict[str, tuple[Slice, float]] = {}  # with the latest time at which something was added
        self._flushed_s = 0.0
        self._said: dict[str, str] = {}
        history = read(self._path) if self._path.exists() else History()
        if history.run and fresh and not (pid and pid in history.pids):
            for newer, older in reversed(list(zip(self._paths, self._paths[1:], strict=False))):
                if newer.exists():
                    os.replace(newer, older)
            history = History()
        history.run = {**run, "since": history.run.get("since", run.get("since"))}
        self._pids = set(history.pids)
        self._replace(history)

    def begin(self, reads: dict[str, Any], pid: int) -> str:
        """A rank attached; returns the name of its track."""
        name = hashlib.sha256(json.dumps(reads, sort_keys=True).encode()).hexdigest()[:8]
        if pid and pid not in self._pids:
            self._pids.add(pid)
            self._put({"pid": pid})
        if name not in self._tracks:
            self._tracks.add(name)
            self._put({"track": name, "reads": reads})
        return name

    def add(self, track: str, grown: Slice, verdict: dict[str, Any] | None) -> None:
        """Adds a slice of one rank to those of other ranks at the same time."""
        now, latest_s = self._open.get(track, (None, 0.0))
        if now is None or (latest_s != grown.at_s and now.span_s > 0.75 * self._grain_s):
            self._end(track)
            now = grown
        else:
            now.span_s += grown.span_s if latest_s != grown.at_s else 0.0
            now.add(grown.sums)
        self._open[track] = now, grown.at_s
        if verdict is not None and self._said.get(track) != verdict["verdict"]:
            self._said[track] = str(verdict["verdict"])
            self._put({"track": track, "verdict": verdict})
        if abs(grown.at_s - self._flushed_s) >= _FLUSH_S:  # the wall clock may have been set back
            self._flushed_s = grown.at_s
            self._flush()

    def close(self) -> None:
        """Writes what is left."""
        for track in list(self._open):
            self._end(track)
        self._flush()

    def _end(self, track: str) -> None:
        if track in self._open:
            self._slices += 1
            self._put(_line(track, self._open.pop(track)[0]))
            if self._slices >= MAX_SLICES or self._lines - self._slices >= _MAX_OTHER_LINES:
                self._flush()
                self._replace(read(self._path))

    def _put(self, line: dict[str, Any]) -> None:
        self._buffer.append(line)
        self._lines += 1

    def _flush(self) -> None:
        if self._buffer:
            # Without O_CREAT: if there are too many logs, this one may have been removed, and must stay so.
            with open(self._path, "ab", opener=lambda path, flags: os.open(path, flags & ~os.O_CREAT)) as file:
                file.write(_bytes(self._buffer))
            self._buffer = []

    def _replace(self, history: History) -> None:
        """Rewrites the whole file, joining slices until it is no longer full."""
        tracks = history.tracks.values()
        self._grain_s = max(1.0, statistics.median([each.span_s for track in tracks for each in track.slices] or [1.0]))
        while (count := sum(len(track.slices) for track in tracks)) >= max(MAX_SLICES, len(tracks) + 1):
            self._grain_s *= 2
            for track in tracks:
                track.slices = gathered(track.slices, MAX_SLICES, self._grain_s)
        self._slices = self._lines = count
        self._tracks = set(history.tracks)
        new = self._path.with_suffix(".new")
        try:
            with open(new, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(_bytes(history.lines()))
            os.replace(new, self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def _line(track: str, each: Slice) -> dict[str, Any]:
    sums = {name: round(value, 4) for name, value in each.sums.items() if value}
    return {"track": track, "at": round(each.at_s, 3), "for": round(each.span_s, 3), "sums": sums}


def _bytes(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
