"""Jobs of a real daemon on a bucket: sandboxed workers read it, and what a bucket does to a job harms no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import BadSampleError, PadBoxes, PrepClient, Resize, SourceUnavailable
from prepserver.pipeline.sources import ImageFolder
from tests.support import datasets
from tests.support.clients import OPS, inline_rows, read
from tests.support.object_store import SECRET, ObjectStore, object_store
from tests.support.server import Server
from tests.support.tiny_images import photo_tree

pytestmark = pytest.mark.fault

COUNT = 80


@pytest.fixture(scope="module")
def bucket() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def shared_server(bucket: ObjectStore) -> Iterator[Server]:
    """Its workers may read from the bucket, and wait 2 s for an object."""
    settings = {"sources.roots": [f"s3://{bucket.bucket}"], "sample_timeout_s": 4.0, "sandbox": "auto"}
    with Server(workers=2, settings=settings, env=bucket.environment) as server:
        yield server


@pytest.fixture
def shared_source(bucket: ObjectStore, tmp_path: Path) -> Iterator[tuple[ImageFolder, ImageFolder]]:
    here = photo_tree(tmp_path / "tree", COUNT)
    yield here, ImageFolder(bucket.upload(tmp_path / "tree", tmp_path.name))
    bucket.faults.clear()


def test_workers_read_from_a_bucket_what_is_on_disk(
    shared_server: Server, shared_source: tuple[ImageFolder, ImageFolder]
) -> None:
    here, there = shared_source
    with PrepClient(
        there, OPS, fields="dict", batch_size=8, shuffle=True, runtime_dir=shared_server.runtime_dir
    ) as client:
        rows = read(client) + read(client)
        assert client.dataset.classes == ["cats", "dogs"]  # which only the daemon could list
    assert rows == inline_rows(here, epochs=2, batch_size=8, shuffle=True)


@pytest.mark.parametrize("made", [datasets.parquet, datasets.objects, datasets.voc])
def test_workers_read_each_shape_of_source_from_a_bucket(
    made: datasets.Format, shared_server: Server, bucket: ObjectStore, tmp_path: Path
) -> None:
    """Row groups, lines that name images, ranges, and files with boxes: sandboxed, some with libraries of their own."""
    spec = made(tmp_path)
    there = spec(bucket.upload(tmp_path, tmp_path.name))
    ops = [Resize((8, 8)), *([PadBoxes(5)] if "boxes" in there.columns else [])]
    shape: dict[str, Any] = {"batch_size": 8, "shuffle": True}
    with PrepClient(there, ops, fields="dict", runtime_dir=shared_server.runtime_dir, **shape) as client:
        found = [{name: each.tolist() for name, each in batch.items()} for batch in client]
    with PrepClient(spec(str(tmp_path)), ops, fields="dict", inline=True, **shape) as client:
        assert found == [{name: each.tolist() for name, each in batch.items()} for batch in client]


def test_a_bucket_fails_in_its_own_jobs_only(
    shared_server: Server, shared_source: tuple[ImageFolder, ImageFolder], bucket: ObjectStore
) -> None:
    """A forbidden object ends its job; others that fail are replaced; a local job goes on, as do all workers."""
    here, there = shared_source
    runtime_dir = shared_server.runtime_dir
    with PrepClient(here, OPS, fields="dict", batch_size=8, runtime_dir=runtime_dir) as local:
        bucket.faults.update({"cats/0003.jpg": 403, "dogs/0050.jpg": "never"})
        with PrepClient(there, OPS, batch_size=8, runtime_dir=runtime_dir) as client:
            with pytest.raises(BadSampleError, match=r"s3://data/.*0003\.jpg: the store answers 403") as caught:
                list(client)
            assert SECRET not in str(caught.value)
        bucket.faults.update({"cats/0007.jpg": 404, "cats/0009.jpg": 500, "cats/0011.jpg": 0.2})
        with PrepClient(
            there, OPS, fields="dict", batch_size=COUNT, on_error="mask", runtime_dir=runtime_dir
        ) as client:
            (batch,) = list(client)
            assert (~batch["valid"]).nonzero().flatten().tolist() == [3, 7, 9, 50]
        assert read(local) == inline_rows(here, batch_size=8)
    assert "killed worker" not in shared_server.log()


def test_what_the_configuration_does_not_name_is_refused(shared_server: Server) -> None:
    for url in ("s3://other/x", "https://169.254.169.254/latest", "http://localhost/x"):
        with (
            pytest.raises(SourceUnavailable, match=r"does not lie below the URLs.*s3://data.*--root"),
            PrepClient(ImageFolder(url), OPS, runtime_dir=shared_server.runtime_dir) as client,
        ):
            next(iter(client))


def test_the_log_shows_no_credentials(shared_server: Server) -> None:
    assert SECRET not in shared_server.log()
    assert SECRET not in str(shared_server.status())


def test_a_private_daemon_reads_what_its_script_names(
    bucket: ObjectStore, shared_source: tuple[ImageFolder, ImageFolder], short_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    here, there = shared_source
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(short_path))
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    with PrepClient(there, OPS, fields="dict", batch_size=8, workers=1) as client:
        assert client.dataset.classes == ["cats", "dogs"]
        assert read(client) == inline_rows(here, batch_size=8)
