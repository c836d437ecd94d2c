"""WebDataset: tar files of photos and labels, read in sequence by DataLoader workers and shuffled in a buffer."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import webdataset

from bench.peers.contenders.lists import listed
from bench.peers.contenders.rows import row_of

_SHARD = 250  # photos in a tar file
_SHUFFLED = 1000  # samples in each worker's buffer: encoded files


def build(config: dict[str, Any]) -> None:
    out = Path(config["out"])
    out.mkdir()
    samples = listed(config["list"])
    for first in range(0, len(samples), _SHARD):
        with tarfile.open(out / f"{first:08}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, (path, label) in enumerate(samples[first : first + _SHARD], first):
                _add(tar, f"{number:08}.jpg", Path(path).read_bytes())
                _add(tar, f"{number:08}.cls", str(label).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    shards = sorted(str(path) for path in Path(config["data"]).glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=config["seed"]).shuffle(_SHUFFLED)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(_row, int).batched(config["batch"])
    loader: Iterable[Any] = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=config["workers"], persistent_workers=True
    )
    return loader


def _row(data: bytes) -> torch.Tensor:
    return torch.from_numpy(row_of(data))
