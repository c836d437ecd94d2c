"""What does it cost that a dataset is not in memory, because it is larger or lies on a network file system?

Eight copies of each photo, as files and packed, in a folder of this machine, or in ``--folder``, such as one of the
file system that you want to know about. In each round all pages of the copies are dropped from the page cache, as any
user may drop those of own files; then comes one epoch, shuffled, with RandomResizedCrop(224) and a flip, batches of 64,
and the same epoch again, from memory. An epoch counts from its first batch to its last. A DataLoader that decodes with
simplejpeg and has as many workers does the same.

A network file system may have a page cache of its own on the server's side; and on the machine of a cloud "cold" may
mean the provider's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.photos import Photos, write_list
from bench.harness.rounds import Target, target_sheet, values
from bench.harness.server import Server, run_cli, running_server
from bench.harness.tables import Sheet, spread

_COPIES = 8
_LOADERS = ("prepserver, files", "prepserver, packed", "DataLoader, files")


def measure(run: Run) -> Figures:
    rounds: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-cold-", dir=run.options.folder) as name:
        folder = Path(name)
        photos = _copied(run.photos, 1 if run.smoke else _COPIES, folder / "files")
        listed = write_list(photos, len(photos.files), run.scratch / "copies.txt")
        run_cli("pack", str(listed), str(folder / "packed"), "--quiet")
        with running_server(run.scratch, run.workers) as server:
            for _ in range(run.rounds(5)):
                rounds.append([])
                for loader, state in itertools.product(_LOADERS, ("cold", "warm")):
                    if state == "cold":
                        _forget(folder)
                    with _opened(loader, server, listed, folder / "packed", run) as batches:
                        found = _images_per_s(batches, len(photos.files))
                    rounds[-1].append({"loader": loader, "state": state, "images_per_s": found})
    return {"rounds": rounds}


def _copied(photos: Photos, copies: int, folder: Path) -> Photos:
    folder.mkdir()
    files: list[tuple[Path, int]] = []
    for number in range(copies):
        for place, (file, label) in enumerate(photos.files):
            copy = folder / f"{number}-{place}{file.suffix}"
            shutil.copyfile(file, copy)
            files.append((copy, label))
    return Photos(photos.what, files, copies * photos.nbytes)


def _forget(folder: Path) -> None:
    """Drops the pages of all files below a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)  # a page that is not written yet stays
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@contextlib.contextmanager
def _opened(loader: str, server: Server, listed: Path, packed: Path, run: Run) -> Iterator[Iterable[Any]]:
    """A loader that was just opened, and so has made no rows ahead."""
    if loader.startswith("DataLoader"):
        from bench.peers.contenders.torch_simplejpeg import open_loader

        yield open_loader(run.job("", listed))
        return
    from prepclient import FileList, Packed

    with server.client(FileList(str(listed)) if loader.endswith("files") else Packed(str(packed))) as client:
        yield client


def _images_per_s(epoch: Iterable[Any], samples: int) -> float:
    batches = iter(epoch)
    next(batches)
    began_s = time.monotonic()
    for _ in batches:
        pass
    return (samples - 64) / (time.monotonic() - began_s)


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet("images/s of an epoch", ("loader", "not in memory", "in memory"))
    for loader in _LOADERS:
        cells = [values(rounds, "images_per_s", {"loader": loader, "state": state}) for state in ("cold", "warm")]
        sheet.rows.append((loader, *(spread(cell) for cell in cells)))
    ratios = [
        Target(
            f"{loader}, not in memory / in memory", "images_per_s",
            {"loader": loader, "state": "cold"}, {"loader": loader, "state": "warm"},
        )
        for loader in _LOADERS
    ]  # fmt: skip
    files = {"loader": _LOADERS[0], "state": "cold"}
    ratios.append(
        Target("not in memory: prepserver / DataLoader", "images_per_s", files, {**files, "loader": _LOADERS[2]})
    )
    return [sheet, target_sheet("Ratios", rounds, ratios)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", metavar="DIR", type=Path, help="where the copies are written (default: /tmp)")


CASE = Case("A dataset that is not in memory", measure, sheets, options=options)
