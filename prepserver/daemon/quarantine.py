"""Samples that killed workers, remembered over restarts: a small file for each sample and each pipeline to blame.

A file appears whole, by a rename, and only the path in it ever changes. So the command line may list and remove files
without a lock, whether a daemon runs or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from prepserver.protocol.schema import Count, Size, Text, Word, build

log = logging.getLogger(__name__)

FOLDER = "quarantine"
"""In the state directory."""

MAX_ENTRIES = 4096
"""Most samples that are remembered, and that a worker is told of. More mean a broken machine, not a broken dataset."""

_MAX_BYTES = 16 << 10
_SUFFIX = ".json"

Sample = tuple[str, int, str]
"""(digest of the source's listing, index, digest of the pipeline)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample."""

    source: Annotated[str, Size(128)]  # digest of the listing that the index belongs to
    index: Count
    reason: Text  # one line
    time: Word  # when, UTC
    path: Text = ""  # the dataset's name for it; empty until a worker has skipped the sample
    dataset: Text = ""  # where the dataset is, for display
    # digest of the only pipeline for which the sample is bad; empty if reading or decoding is to blame
    pipeline: Annotated[str, Size(128)] = ""
    ops: Text = ""  # the ops of that pipeline, for display

    @property
    def sample(self) -> Sample:
        """The sample, and the pipeline to blame."""
        return self.source, self.index, self.pipeline


class Quarantine:
    """The samples of one daemon, and their files in `folder`, which is made with the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsaved: dict[Sample, Entry] = {}  # those whose file could not be written
        self._unnamed: set[Sample] = set()  # those whose path is unknown
        self._known: tuple[int, list[Entry]] = (-1, [])  # the folder's mtime, and its entries at that time

    def add(self, source: str, index: int, reason: str, dataset: str, pipeline: str = "", ops: str = "") -> None:
        """Remembers a sample (see `Entry`) while the daemon lives, and longer if its file can be written.

        Beyond `MAX_ENTRIES` it does not, and the sample is tried again once no job reads the dataset.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Entry(source, index, reason, now, dataset=dataset, pipeline=pipeline, ops=ops[:1000])
        if len(self._kept()) + len(self._unsaved) >= MAX_ENTRIES:
            log.warning("%d samples are quarantined already: sample %d is not remembered", MAX_ENTRIES, index)
            return
        self._unnamed.add(entry.sample)
        self._save(entry)

    def name(self, source: str, index: int, reason: str) -> None:
        """Notes the path of a sample that a worker has skipped, with which the worker's `reason` begins."""
        path, quarantined, _ = reason.partition(": quarantined")
        meant = {sample for sample in self._unnamed if sample[:2] == (source, index)}
        if not meant:
            return
        self._unnamed -= meant
        for known in self.of(source) if quarantined else ():
            if known.sample in meant:
                self._save(dataclasses.replace(known, path=path))

    def of(self, source: str) -> Collection[Entry]:
        """The samples of a source: those in the files now, and those that could not be written."""
        found = {e.sample: e for e in self._kept()} | self._unsaved
        return [e for e in found.values() if e.source == source]

    def _kept(self) -> list[Entry]:
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return []
        # The mtime is coarse, but `_save` resets this, and no user clears a sample within the same clock tick.
        if self._known[0] != changed_ns:
            self._known = changed_ns, entries(self._folder)
        return self._known[1]

    def _save(self, entry: Entry) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._folder / file_name(entry)
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(dataclasses.asdict(entry)))
            unfinished.replace(path)
        except OSError as e:
            log.warning("cannot write the quarantine of sample %d to %s: %s", entry.index, self._folder, e.strerror)
            self._unsaved[entry.sample] = entry
        else:
            self._unsaved.pop(entry.sample, None)
            self._known = (-1, [])


def entries(folder: Path) -> list[Entry]:
    """All entries in a folder, sorted; other files are skipped, and a missing folder has none."""
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(folder))[: 2 * MAX_ENTRIES]:
            entry = _read(folder / name) if name.endswith(_SUFFIX) else None
            if entry is not None:
                found[entry.sample] = entry
    return [found[key] for key in sorted(found)]


def clear(folder: Path, chosen: Collection[Entry]) -> None:
    """Removes the files of samples, which the next job tries again that opens their source while no other reads it."""
    for entry in chosen:
        (folder / file_name(entry)).unlink(missing_ok=True)


def file_name(entry: Entry) -> str:
    """Name of an entry's file."""
    pipeline = f"-{entry.pipeline[:16]}" if entry.pipeline else ""
    return f"{entry.source[:32]}-{entry.index}{pipeline}{_SUFFIX}"


def _read(path: Path) -> Entry | None:
    try:
        with path.open("rb") as f:
            fields: Any = json.loads(f.read(_MAX_BYTES))
        entry = build(Entry, fields)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as e:
        log.warning("skipping %s, which holds no quarantined sample: %s", path, e)
        return None
    # `clear` can remove an entry only under its own name.
    return entry if file_name(entry) == path.name else None
