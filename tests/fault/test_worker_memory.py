"""A file that needs more memory than a worker may have: its samples are bad, and nothing else suffers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from prepclient import ImageFolder, InvalidSpec, Parquet, PrepClient, RandomCrop, SourceUnavailable
from prepclient.errors import BadSampleError
from tests.support.clients import OPS, inline_rows, read
from tests.support.server import Server
from tests.support.tiny_images import jpeg, photo_tree

pytestmark = pytest.mark.fault


def test_a_job_ends_if_an_image_takes_more_than_a_worker_has(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """The worker holds the image when it fails, and must still be able to report it."""
    (tmp_path / "a").mkdir()
    Image.new("RGB", (5000, 5000)).save(tmp_path / "a" / "0.png")
    server = new_server(workers=1, settings={"worker_memory": "160M"})
    with (
        PrepClient(ImageFolder(tmp_path), [RandomCrop(16)], batch_size=1, runtime_dir=server.runtime_dir) as client,
        pytest.raises(InvalidSpec, match=r"at a/0\.png: MemoryError: \(worker_memory in the configuration limits"),
    ):
        list(client)
    assert [worker["restarts"] for worker in server.status()["workers"]] == [0]


def test_a_file_that_takes_more_than_a_worker_has_is_named(new_server: Callable[..., Server], tmp_path: Path) -> None:
    source = photo_tree(tmp_path / "photos", 4)
    large = min((tmp_path / "photos").rglob("*.jpg"))
    os.truncate(large, 200 << 20)
    server = new_server(workers=1, settings={"worker_memory": "100M"})
    said = rf"MemoryError: \(at {large.parent.name}/{large.name}; worker_memory in the configuration limits"
    with (
        PrepClient(source, [RandomCrop(16)], batch_size=4, runtime_dir=server.runtime_dir) as client,
        pytest.raises(SourceUnavailable, match=said),
    ):
        list(client)


def test_what_no_worker_can_hold_is_its_samples_verdict(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """Some kilobytes on disk that take 96 MiB, between two row groups of good images."""
    ends = pa.py_buffer(np.arange(5, dtype=np.int32) * (24 << 20))
    large = pa.Array.from_buffers(pa.binary(), 4, [None, ends, pa.py_buffer(np.zeros(96 << 20, np.uint8))])
    groups = [pa.array([jpeg(4 * each + number) for number in range(4)]) for each in range(2)]
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for number, images in enumerate((groups[0], large, groups[1])):
            writer.write_table(pa.table([images, pa.array(range(4 * number, 4 * number + 4))], schema=schema))
    assert path.stat().st_size < 1 << 20
    source, photos = Parquet(path, "image", "label"), photo_tree(tmp_path / "photos", 12)
    server = new_server(workers=1, settings={"worker_memory": "64M"})
    where: dict[str, Any] = {"runtime_dir": server.runtime_dir, "batch_size": 4}
    with PrepClient(source, [RandomCrop(16)], on_error="skip", **where) as client:
        assert [batch[1].tolist() for batch in client] == [[0, 1, 2, 3], [8, 8, 8, 8], [8, 9, 10, 11]]
        assert client.stats()["bad_samples"] == 4
        with PrepClient(photos, OPS, fields="dict", **where) as other:
            assert read(other) == inline_rows(photos, batch_size=4)
    said = r"a\.parquet, row 4: row group 1 of a\.parquet takes more memory than a worker may have \(worker_memory"
    with (
        PrepClient(source, [RandomCrop(16)], **where) as client,
        pytest.raises(BadSampleError, match=said),
    ):
        list(client)
    assert [worker["restarts"] for worker in server.status()["workers"]] == [0]
