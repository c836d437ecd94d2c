"""Caches of a real daemon: one copy for all jobs, the bytes of inline, through kills, restarts and damage."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Picture

from prepclient import (
    ImageFolder,
    InvalidSpec,
    Joining,
    Parquet,
    PrepClient,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    kinds,
)
from prepclient.errors import PrepClientError
from prepserver.cli.ask import ask_status
from prepserver.pipeline.ops import Op
from tests.support.clients import Rows, inline_rows, read
from tests.support.server import Server
from tests.support.tiny_images import photo_tree

pytestmark = pytest.mark.integration

COUNT = 96
OPS: list[Op] = [Resize(32), RandomCrop(24), RandomHorizontalFlip()]
OTHER: list[Op] = [Resize(32), RandomCrop(16)]
SPEC: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 7}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return photo_tree(tmp_path_factory.mktemp("photos"), COUNT, broken=frozenset({5}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def caching(folder: Path) -> Iterator[Server]:
    with Server(workers=2, arguments=["--cache-memory", "256M", "--cache-folder", str(folder)]) as server:
        yield server


def rows(server: Server, source: ImageFolder, ops: list[Op], epochs: int = 2, **more: Any) -> Rows:
    arguments = {**SPEC, "joining": Joining(start="first"), "on_error": "skip", **more}
    with PrepClient(source, ops, fields="dict", runtime_dir=server.runtime_dir, **arguments) as client:
        return [row for _ in range(epochs) for row in read(client)]


def expected(source: ImageFolder, ops: list[Op], epochs: int = 2, **more: Any) -> Rows:
    return inline_rows(source, epochs=epochs, ops=ops, on_error="skip", **{**SPEC, **more})


def cache_of(server: Server, form: str, place: str = "memory") -> dict[str, Any]:
    (found,) = [c for c in server.status()["caches"] if (c["form"], c["place"]) == (form, place)]
    return dict(found)


def test_jobs_of_one_head_share_one_copy_with_the_rows_of_inline(caching: Server, source: ImageFolder) -> None:
    for ops, seed in ((OPS, 7), (OTHER, 7), (OPS, 8), (OPS, 7)):
        assert rows(caching, source, ops, seed=seed, cache="decoded") == expected(source, ops, seed=seed)
    found = cache_of(caching, "decoded")
    assert (found["rows"], found["samples"], found["ops"]) == (COUNT - 1, COUNT, ["Decode", "Resize"])
    assert found["hit_rate"] > 0.7
    # 32 x 44 or 45 pixels each, in extents that two workers take
    assert (COUNT - 1) * 32 * 44 * 3 < found["bytes"] < 4 << 20
    assert caching.status()["memory"]["caches_bytes"] >= found["bytes"]
    before = found["bytes"]
    assert rows(caching, source, OTHER, seed=9, cache="decoded") == expected(source, OTHER, seed=9)
    assert cache_of(caching, "decoded")["bytes"] == before


def test_an_encoded_cache_is_filled_once(caching: Server, source: ImageFolder) -> None:
    ops: list[Op] = [RandomCrop(24)]
    assert rows(caching, source, ops, cache="encoded") == expected(source, ops)
    found = cache_of(caching, "encoded")
    assert (found["rows"], found["ops"], found["damaged"]) == (COUNT, [], 0)


def test_large_row_groups_that_are_shuffled_get_a_cache(caching: Server, tmp_path: Path) -> None:
    """Nobody asked for it: without it, most samples would decode a group of 16 MiB. In order, none is needed."""
    group, groups = 4096, 17  # together more than a worker keeps
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.list_(pa.float64(), 512))])) as file:
        for number in range(groups):
            values = np.repeat(np.arange(group, dtype=np.float64) + group * number, 512)
            file.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 512)}))
    table = Parquet(tmp_path / "a.parquet", columns={"x": kinds.Array((512,), "float64")})
    asked: dict[str, Any] = {**SPEC, "batch_size": 8, "fields": "dict", "runtime_dir": caching.runtime_dir}
    for more in ({"shuffle": False}, {"order": "batch-shuffle-repeat"}, {}):
        before = [each["id"] for each in caching.status()["caches"]]
        with PrepClient(table, [], **asked | more) as client:
            rows = [
                (index, x[0], x[-1]) for batch, _ in zip(client, range(3), strict=False) for index, x in pairs(batch)
            ]
            made = [each for each in caching.status()["caches"] if each["id"] not in before]
        assert len(rows) == 24
        assert all(index == first == last for index, first, last in rows)
        assert [(each["form"], each["place"]) for each in made] == [("encoded", "memory")] * (not more)
    assert made[0]["rows"] > group


def test_decoded_images_on_disk_get_such_a_cache_beside_them(caching: Server, folder: Path, tmp_path: Path) -> None:
    """Otherwise its first epoch would decode a row group for most samples."""
    rng = np.random.default_rng(0)
    noise = io.BytesIO()
    Picture.fromarray(rng.integers(0, 256, (512, 512, 3), np.uint8)).save(noise, "PNG")
    group, groups = 32, 12  # 300 MB together, of which a worker keeps 256 MiB
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("image", pa.binary())]), use_dictionary=False) as file:
        for _ in range(groups):
            file.write_table(pa.table({"image": [noise.getvalue()] * group}))
    before = [each["id"] for each in caching.status()["caches"]]
    asked: dict[str, Any] = {**SPEC, "batch_size": 8, "runtime_dir": caching.runtime_dir}
    table = Parquet(tmp_path / "a.parquet", columns={"image": kinds.Image()})
    with PrepClient(table, [Resize(40), RandomCrop(24)], cache=str(folder), **asked) as client:
        next(iter(client))
        made = {each["form"]: each["rows"] for each in caching.status()["caches"] if each["id"] not in before}
    assert made["encoded"] > made["decoded"] >= 8


def pairs(batch: Any) -> list[tuple[int, list[float]]]:
    return list(zip(batch["index"].tolist(), batch["x"].tolist(), strict=True))


def test_workers_killed_while_they_fill_a_cache_leave_good_rows(caching: Server, source: ImageFolder) -> None:
    ops: list[Op] = [Resize(40), RandomCrop(24)]
    with PrepClient(
        source, ops, fields="dict", runtime_dir=caching.runtime_dir, on_error="skip", cache="decoded",
        joining=Joining(start="first"), **SPEC,
    ) as client:  # fmt: skip
        found: Rows = []
        for _ in range(3):
            for pid in caching.workers():
                with contextlib.suppress(ProcessLookupError):  # the status may name one that has just ended
                    os.kill(pid, signal.SIGKILL)
            found += read(client)
    assert found == expected(source, ops, epochs=3)


def test_a_cache_on_disk_survives_daemons_and_damage(source: ImageFolder, tmp_path: Path) -> None:
    """Each daemon is private, and allowed to write where its only user may."""
    wanted = expected(source, OPS, epochs=1)

    def epoch() -> tuple[Rows, dict[str, Any]]:
        with PrepClient(
            source, OPS, fields="dict", runtime_dir=tmp_path / "none", workers=1, on_error="skip",
            cache=tmp_path / "cache", joining=Joining(start="first"), **SPEC,
        ) as client:  # fmt: skip
            found = read(client)
            private = client._attachment._private
            assert private is not None
            (status,) = ask_status(str(private.runtime_dir))["caches"]
        return found, status

    found, first = epoch()
    assert found == wanted
    # the daemon fills rows beyond the epoch, too
    assert (first["rows"], first["place"]) == (COUNT - 1, str(tmp_path / "cache"))
    (path,) = (tmp_path / "cache").iterdir()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 16]))
    found, second = epoch()
    assert found == wanted
    assert (second["rows"], second["damaged"]) == (COUNT - 1, 1)
    assert second["hits"] >= COUNT - 2  # all but the bad sample and the damaged one


def test_a_folder_that_is_not_allowed_is_refused(caching: Server, source: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(PrepClientError, match="only below"):
        rows(caching, source, OPS, cache=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("cache", ["disk", 7, b"decoded", "/" + "x" * 2000])
def test_another_cache_is_refused_before_anything_is_sent(source: ImageFolder, cache: Any) -> None:
    with pytest.raises(InvalidSpec, match="cache = "):
        PrepClient(source, OPS, cache=cache)
