"""Packs a dataset, from the beginning or from where an earlier run was stopped.

The steps: lock the folder, list the source, check the plan, read the records that exist, transcode the rest in order,
write the index. If a run is killed at any moment, the next run continues.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from prepserver.pack import PackError
from prepserver.pack.crew import Answer, Crew, UnreadableError
from prepserver.pack.plan import LISTING_NAME, Workplace
from prepserver.pack.report import Report
from prepserver.pack.shards import ShardWriter
from prepserver.pack.transcode import DAMAGED, NO_IMAGE, ODD, Transcoded, Transcoder, transcode
from prepserver.pipeline.kinds import Array, Image, Kind, Scalar
from prepserver.pipeline.record import Columns, changed_label, images, label_of
from prepserver.pipeline.sources import Packed, SourceSpec
from prepserver.pipeline.urls import is_url
from prepserver.plugins import PluginError
from prepserver.protocol.packed import INDEXED, KEPT, PIXELS, SKIPPED, kept_record, skipped_record
from prepserver.source import SampleError, Source, SourceError, build_index, open_source
from prepserver.source.cache import ListingCache
from prepserver.source.container import BrokenContainerError
from prepserver.source.errors import printable
from prepserver.source.packed_values import to_bytes
from prepserver.source.readers.packed import INDEX_PATTERN, columns_meta, columns_of, kinds_of, open_index

_SETTINGS = ("transcoder", "segment_mcus", "quality", "max_side", "form", "pixels", "side")
_NAMED_AT_MOST = 20  # at most this many skipped files, and as many damaged ones, are named in a run


@dataclass(frozen=True, slots=True)
class Options:
    """How to pack."""

    transcoder: Transcoder  # how images are transcoded
    shard_bytes: int = 256 << 20  # size of a shard
    workers: int = 1  # processes that transcode
    skip: bool = False  # leave out samples that cannot be read, instead of giving up at the first one


@dataclass(frozen=True, slots=True)
class Summary:
    """The finished dataset."""

    folder: str  # folder of the dataset
    samples: int  # samples that are served
    indexed: int  # samples that can be decoded in part
    kept: int  # samples that are kept unchanged
    skipped: int  # samples of the source that are left out
    shards: int  # number of shards
    image_bytes: int  # bytes of all images
    total_bytes: int  # bytes of the shards and the index
    # transcoder, segment_mcus, quality (0 keeps each original's) and max_side; or form, pixels and side
    settings: dict[str, Any]
    this_run: dict[str, Any]  # what this run did: samples, bytes_read, seconds, images_per_s, and how many of each kind
    use: str  # the source that serves all of its columns, as Python writes it
    already: bool = False  # the dataset was already packed; nothing was done
    columns: tuple[str, ...] = ()  # columns of each sample in shards, except the first
    pixels: int = 0  # samples that are stored as pixels


def pack(spec: SourceSpec, folder: Path, options: Options, report: Report) -> Summary:
    """Pack a dataset into a folder: new, empty, or from an earlier run with the same source and options.

    Raises:
        PackError: Packing cannot start or continue; finished work stays.
    """
    _check(spec, options)
    place = Workplace(folder)
    try:
        return _Packing(spec, place, options, report).run()
    except BrokenContainerError as error:
        raise PackError(
            f"the source's listing {error.path} is damaged: run the same command again to continue"
        ) from error
    except SampleError as error:  # while its label was read for the index: it has changed since it was packed
        raise PackError(f"{spec.location}: {error.reason}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PackError(
                f"no space left for {folder}; what is packed so far is safe. Make room and run the same command again"
            ) from error
        raise PackError(
            f"cannot write to {folder}: {error.strerror or error}; run the same command again to continue"
        ) from error
    finally:
        place.close()


class _Packing:
    def __init__(self, spec: SourceSpec, place: Workplace, options: Options, report: Report) -> None:
        self._spec = spec
        self._columns = _packed_columns(spec)
        self._place = place
        self._options = options
        self._report = report
        self._how: Counter[str] = Counter()
        self._bytes_read = 0
        self._named: Counter[str] = Counter()

    def run(self) -> Summary:
        folder = self._place.folder
        source = self._listed()
        for path in sorted(folder.glob(INDEX_PATTERN)):
            try:
                index = open_index(path)
                index.check()
                summary = replace(_summary_of(folder, index.meta), already=True)
            except (SourceError, BrokenContainerError):  # or from an older release: rebuild it from the shards
                path.unlink()
                continue
            shutil.rmtree(folder / LISTING_NAME, ignore_errors=True)
            return summary
        begun_s = time.monotonic()
        writer = ShardWriter(folder, self._options.shard_bytes, len(self._columns))
        try:
            first = writer.table.done
            if first:
                self._report.say(f"continuing: {first} of {len(source)} samples are already packed")
            self._transcode_all(source, writer)
            if not writer.table.samples:
                raise PackError("no sample could be read, so there is nothing to pack")
            writer.finish()
        finally:
            writer.close()
        spent_s = time.monotonic() - begun_s
        notes = {
            "source": self._spec.to_wire(),
            **self._options.transcoder.settings,
            "indexed": writer.table.kinds[INDEXED],
            "pixels_stored": writer.table.kinds[PIXELS],
            "kept": writer.table.kinds[KEPT],
            "skipped": writer.table.kinds[SKIPPED],
            "image_bytes": writer.table.image_bytes,
        }
        held = columns_meta(self._spec.columns, [*self._columns])
        path = writer.write_index(source, held, notes)
        shutil.rmtree(folder / LISTING_NAME, ignore_errors=True)
        done = writer.table.done - first
        this_run = {
            "samples": done,
            "bytes_read": self._bytes_read,
            "seconds": round(spent_s, 3),
            "images_per_s": round(done / spent_s, 1),
            "how": dict(self._how.most_common()),
        }
        return replace(_summary_of(folder, open_index(path).meta), this_run=this_run)

    def _listed(self) -> Source:
        try:
            # Checks the listing of an earlier run: damage in it must not count as bad samples.
            ListingCache(self._place.folder / LISTING_NAME).check()
            index = build_index(self._spec, self._place.folder / LISTING_NAME)
            plan = {
                "source": self._spec.to_wire(),
                "samples": index.samples,
                "content_digest": index.content_digest,
                **self._options.transcoder.settings,
                "shard_bytes": self._options.shard_bytes,
            }
            if changed := changed_label(self._spec.columns):  # a dataset that 0.2 began has another one in its index
                plan["label"] = changed[0]
            self._place.settle(plan)
            return open_source(self._spec, index.path)
        except SourceError as error:
            self._place.abandon()
            raise PackError(error.reason) from error

    def _transcode_all(self, source: Source, writer: ShardWriter) -> None:
        transcoder = self._options.transcoder
        table = writer.table
        is_photo = _is_photo(next(iter(self._columns.values())))

        def work(sample: int) -> tuple[int, Transcoded]:
            first, *more = _read(source, sample, self._columns)
            made = transcode(sample, first, transcoder) if is_photo else Transcoded(kept_record(sample, first), "kept")
            records = b"".join((made.record, *(kept_record(sample, each) for each in more)))
            return len(first) + sum(map(len, more)), Transcoded(records, made.how)

        def idle() -> None:
            check()
            self._report.progress(table.done)

        check = _StoppedByHand()
        self._report.begin(len(source), table.done)
        try:
            crew = Crew(work, self._options.workers)
            for answer in crew.run(table.done, len(source), idle):
                check()
                if answer.ok and answer.text in (DAMAGED, NO_IMAGE, ODD):
                    self._name(source, answer, "kept")
                writer.append(answer.record if answer.ok else self._leave_out(source, answer))
                self._bytes_read += answer.read_bytes
                self._how[answer.text if answer.ok else "skipped"] += 1
                self._report.progress(table.done)
        finally:
            check.end()
            self._report.end()

    def _leave_out(self, source: Source, answer: Answer) -> bytes:
        """Return the record of a sample that could not be read, or end packing."""
        name = printable(source.name(answer.sample))
        if not self._options.skip:
            raise PackError(
                f"{name}: {answer.text}. What is packed so far is safe: repair the file and run the same command "
                "again, or add --on-error skip to leave such samples out"
            )
        self._name(source, answer, "skipped")
        return skipped_record(answer.sample, answer.text)

    def _name(self, source: Source, answer: Answer, what: str) -> None:
        """Report a skipped or damaged file; only the first ones are named."""
        self._named[what] += 1
        if self._named[what] <= _NAMED_AT_MOST:
            more = "; others are only counted" if self._named[what] == _NAMED_AT_MOST else ""
            why = answer.text.removeprefix("kept: ")
            self._report.say(f"{what} {printable(source.name(answer.sample))}: {why}{more}")


class _StoppedByHand:
    """Ctrl-C while samples are packed, raised where the packer calls this object.

    A KeyboardInterrupt at any time could be raised in a callback or a finalizer, where Python reports and ignores it.
    """

    def __init__(self) -> None:
        self._is_due = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._is_due = True
        signal.signal(number, signal.default_int_handler)  # a second Ctrl-C interrupts at once

    def __call__(self) -> None:
        if self._is_due:
            raise KeyboardInterrupt

    def end(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _check(spec: SourceSpec, options: Options) -> None:
    for part in spec.parts():
        if isinstance(part, Packed):
            raise PackError(f"{part.root} is already packed; pack the dataset that it was made from", usage=True)
        for _, path in part.named_paths():
            if is_url(path):
                raise PackError(f"{path} is not on this machine: copy it here and pack the copy", usage=True)
    columns = _packed_columns(spec)
    if not columns:
        raise PackError(f"{spec.location} has only labels, and nothing to pack", usage=True)
    if all(isinstance(kind, Scalar | Array) and getattr(kind, "shape", ()) is not None for kind in columns.values()):
        raise PackError(
            f"{spec.location} has only numbers ({', '.join(spec.columns)}), which need no decoding: packing gains "
            "nothing without images, masks, texts or arrays of varying size. Read them with Arrays",
            usage=True,
        )
    transcoder, (first, *more) = options.transcoder, columns
    spatial = [name for name in more if columns[name].is_spatial]
    if (transcoder.max_side or transcoder.side) and spatial:
        option = "--side" if transcoder.side else "--max-side"
        raise PackError(f"{option} shrinks images but not {', '.join(spatial)}: leave out one of the two", usage=True)
    if (transcoder.pixels or transcoder.max_side) and not _is_photo(columns[first]):
        option = "--form pixels" if transcoder.pixels else "--max-side"
        raise PackError(f"{option}: {spec.location} has no images of uint8 with 3 channels", usage=True)


def _packed_columns(spec: SourceSpec) -> Columns:
    """Return the columns that shards hold, an image first. The first label is in the index."""
    found = {name: kind for name, kind in spec.columns.items() if name != label_of(spec.columns)}
    return dict(sorted(found.items(), key=lambda each: (not _is_photo(each[1]), not isinstance(each[1], Image))))


def _is_photo(kind: Kind) -> bool:
    return isinstance(kind, Image) and kind.is_photo


def _read(source: Source, sample: int, columns: Columns) -> list[bytes]:
    try:
        record = source.read(sample)
    except SampleError as error:
        raise UnreadableError(error.reason) from error
    except OSError as error:
        raise UnreadableError(f"cannot read the file: {error.strerror or error}") from error
    except PluginError as error:
        raise UnreadableError(str(error)) from error
    try:
        return [to_bytes(record[name], kind) for name, kind in columns.items()]
    except UnicodeEncodeError as error:
        raise UnreadableError(f"character {error.start} of a text is half of a surrogate pair") from error


def _summary_of(folder: Path, meta: dict[str, Any]) -> Summary:
    notes = meta["packed"]
    index_bytes = sum(path.stat().st_size for path in folder.glob(INDEX_PATTERN))
    return Summary(
        folder=os.fspath(folder),
        samples=meta["n"],
        indexed=notes["indexed"],
        kept=notes["kept"],
        skipped=notes["skipped"],
        shards=len(meta["shards"]),
        image_bytes=notes["image_bytes"],
        total_bytes=sum(meta["shards"]) + index_bytes,
        settings={name: notes[name] for name in _SETTINGS if name in notes},
        this_run={},
        use=_use(folder, kinds_of(meta)),
        columns=columns_of(meta)[1:],
        pixels=notes.get("pixels_stored", 0),
    )


def _use(folder: Path, columns: Columns) -> str:
    shown = ""
    if columns == images(mask=True):
        shown = ", masks=True"
    elif columns != images():
        shown = ", columns={" + ", ".join(f'"{name}": {_written(kind)}' for name, kind in columns.items()) + "}"
    return f'Packed("{folder}"{shown})'


def _written(kind: Kind) -> str:
    values = ((each, getattr(kind, each.name)) for each in fields(kind) if each.compare)
    given = ", ".join(f"{each.name}={value!r}" for each, value in values if value != each.default)
    return f"kinds.{type(kind).__name__}({given})"
