"""Each source that reads files, by each scheme: on the network it gives what it gives on disk."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prepserver.pipeline import kinds
from prepserver.pipeline.sources import SOURCES, Arrays, SourceSpec, Tar, TextLines
from prepserver.source import Source, SourceError, build_index, open_source
from prepserver.source.storage import remote
from tests.support import datasets
from tests.support.object_store import ObjectStore, object_store


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ObjectStore, dict[str, str]]]:
    """A bucket, and its URL by scheme.

    Google's stores speak the same XML as S3's, so S3's server stands for one; it has other clients in obstore.
    """
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        url, authority = store.encrypted(tmp_path_factory.mktemp("tls"))
        google = {
            "BASE_URL": store.web.removesuffix(f"/{store.bucket}"),
            "SKIP_SIGNATURE": "true",
            "ALLOW_HTTP": "true",
        }
        named = {f"GOOGLE_{name}": value for name, value in google.items()} | {"SSL_CERT_FILE": str(authority)}
        for name, value in (*store.environment.items(), *named.items()):
            patch.setenv(name, value)
        found = {"s3": f"s3://{store.bucket}", "gs": f"gs://{store.bucket}", "https": url}
        remote.configure(list(found.values()), 15.0)
        yield store, found


def opened(spec: SourceSpec, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


@pytest.mark.parametrize("scheme", ["s3", "gs", "https"])
@pytest.mark.parametrize("made", datasets.FORMATS)
def test_a_source_gives_on_the_network_what_it_gives_on_disk(
    made: datasets.Format, scheme: str, bases: tuple[ObjectStore, dict[str, str]], tmp_path: Path
) -> None:
    store, urls = bases
    (folder := tmp_path / "here").mkdir()
    spec = made(folder)
    store.upload(folder, tmp_path.name)
    here, there = spec(str(folder)), spec(f"{urls[scheme]}/{tmp_path.name}")
    if made is datasets.masked_tree and scheme == "https":
        with pytest.raises(SourceError, match="a web server cannot list its files"):
            build_index(there, tmp_path / "cache")
        return
    on_disk, in_bucket = opened(here, tmp_path), opened(there, tmp_path)
    infos = [build_index(each, tmp_path / "cache") for each in (here, there)]
    assert len(on_disk) >= datasets.COUNT
    assert infos[0].content_digest == infos[1].content_digest
    assert infos[0].digest != infos[1].digest
    assert in_bucket.classes() == on_disk.classes()
    datasets.check_same_samples(in_bucket, on_disk)


def test_every_source_that_reads_files_is_among_them(tmp_path: Path) -> None:
    tried = set()
    for number, made in enumerate(datasets.FORMATS):
        (folder := tmp_path / str(number)).mkdir()
        tried.add(type(made(folder)("s3://data")))
    missing = [name for name, kind in SOURCES.items() if kind.paths and kind not in tried]
    assert missing == [], "add a function to FORMATS in tests/support/datasets.py, which writes some samples"


@pytest.mark.parametrize("scheme", ["s3", "https"])
def test_what_is_refused_on_disk_is_refused_everywhere(
    scheme: str, bases: tuple[ObjectStore, dict[str, str]], tmp_path: Path
) -> None:
    """Files that cannot be read in place, with the same words and the same way out."""
    store, urls = bases
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((9, 2), np.float32))
    for name in ("a.tar", "a.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"text\n" * 99))
    store.upload(tmp_path, tmp_path.name)
    columns = {"x": kinds.Array((2,))}

    def refused(base: str) -> list[str]:
        said = []
        for spec in (Arrays(x=f"{base}/x.npz", columns=columns), Tar(f"{base}/a.tar"), TextLines(f"{base}/a.txt")):
            with pytest.raises(SourceError, match="is compressed") as caught:
                build_index(spec, tmp_path / "cache")
            said.append(str(caught.value).replace(base, "HERE"))
        return said

    found = refused(f"{urls[scheme]}/{tmp_path.name}")
    assert found == refused(str(tmp_path))
    assert "save it with numpy.savez" in found[0]
