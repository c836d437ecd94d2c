"""A child that lists one source and ends: if the dataset's storage hangs, this process hangs and not the daemon.

Killing it, or hanging up, cancels the listing and leaves no index. It has the workers' sandbox, but it may write to its
cache and, for a source that names paths, read everywhere, because links in a dataset lead anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from prepserver.memory.passing import close_all
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import source_from_wire
from prepserver.pipeline.urls import is_url
from prepserver.protocol.schema import MAX_CLASS_NAMES_BYTES, MAX_WORD_CHARS, ProtocolError
from prepserver.protocol.work import TO_INDEXER, BuildIndex, Indexed, IndexFailed, Indexing
from prepserver.source import OutsideRootsError, Roots, SourceError, build_index
from prepserver.source.errors import printable
from prepserver.source.opfiles import digests, places
from prepserver.source.progress import one_by_one
from prepserver.worker.channel import ChannelClosed, receive, send
from prepserver.worker.sandbox import OPEN, Seal

log = logging.getLogger("prepserver.indexer")

EXIT_CANCELLED = 1

CALLS = frozenset({"utimensat"})
"""System calls that it may make and a worker may not: it sets a time to read the clock that stamps files."""

MOST_BYTES = 8 << 30
"""Memory limit of an indexer, which the zygote sets: a folder of 100 million files takes 7 GiB, a list of so many
lines 8 GiB."""


def run(sock: socket.socket, seal: Seal = OPEN) -> int:
    """Answers the one request that arrives on `sock`, the blocking line to the daemon; returns the exit status.

    `seal` is closed before anything of the dataset is read.
    """
    try:
        job, fds = receive(sock, TO_INDEXER)
        close_all(fds)
        cache = Path(job.cache_dir)
        with contextlib.suppress(OSError):  # reported when the index is written
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        send(sock, _answer(job, sock, seal))
    except ChannelClosed:
        return EXIT_CANCELLED
    except ProtocolError:
        log.exception("protocol error of the daemon")
        return os.EX_SOFTWARE
    return os.EX_OK


def _answer(job: BuildIndex, sock: socket.socket, seal: Seal) -> Indexed | IndexFailed:
    def report(found: int) -> None:
        send(sock, Indexing(found))

    if job.one_by_one:
        one_by_one(lambda path: send(sock, Indexing(0, printable(path)[:4096])))
    roots = job.roots
    try:
        spec = source_from_wire(job.source)
        local = any(not is_url(path) for part in spec.parts() for _, path in part.named_paths())
        seal.close(["/"] if local or job.files else [], writable=[job.cache_dir])
        try:
            rule = Roots(roots) if roots else None
            files = digests(job.files, rule)
            info = build_index(spec, Path(job.cache_dir), report, rule)
        except OutsideRootsError:
            if job.roots_only:
                raise
            roots = []
            files = digests(job.files)
            info = build_index(spec, Path(job.cache_dir), report)
    except ChannelClosed:
        raise
    except (SourceError, SpecError) as e:
        return IndexFailed(str(e)[:4096])
    except MemoryError:
        return IndexFailed(
            f"listing the source takes more than {MOST_BYTES >> 30} GiB of memory, the limit: split it into several "
            "sources, and join these with Concat"
        )
    except Exception as e:
        log.exception("indexing %s", job.source)
        return IndexFailed(printable(f"indexing failed: {type(e).__name__}: {e}")[:4096])
    seen = list(dict.fromkeys((*info.places, *places(job.files))))
    return Indexed(
        str(info.path), info.samples, info.num_classes, info.digest, info.content_digest, roots, seen, files,
        class_names(info.classes), list(info.row_groups), info.kept_rows, info.coarse_bytes,
    )  # fmt: skip


def class_names(names: Sequence[str]) -> list[str]:
    """The names if a message can hold them; none if one is too long or not valid text, or they are too many."""
    try:
        lengths = [len(name.encode()) for name in names]
    except UnicodeEncodeError:
        return []
    fits = max(lengths, default=0) <= MAX_WORD_CHARS and sum(lengths) + 3 * len(lengths) <= MAX_CLASS_NAMES_BYTES
    return list(names) if fits else []
