"""URLs in a spec: one spelling, no credentials, and which of them lie below a root."""

from __future__ import annotations

import pathlib

import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import ImageFolder, Tar, source_from_wire
from prepserver.pipeline.urls import canonical, lies_below, split


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("s3://bucket/a%20b/c/", "s3://bucket/a%20b/c"),
        ("S3://bucket", "s3://bucket"),
        ("https://Host.example:443/a%20b", "https://host.example/a%20b"),
        ("http://127.0.0.1:9000/x?", None),
        ("gs://b/what?#", "gs://b/what?#"),
        ("http://[::1]:80/x", "http://[::1]/x"),
    ],
)
def test_a_url_has_one_spelling(given: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(SpecError, match="query"):
            canonical("root", given)
    else:
        assert canonical("root", given) == found
        assert canonical("root", found) == found


@pytest.mark.parametrize(
    "url",
    [
        "s3:///key",
        "s3://b//key",
        "s3://b/../c",
        "https://h/a/%2e%2E/b",
        "https://h/%2Fa",
        "az://",
        "https://h:/x",
        "s3:/b/k",
    ],
)
def test_a_url_that_could_mean_another_place_is_refused(url: str) -> None:
    with pytest.raises(SpecError):
        ImageFolder(url)


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    for url in ("https://me:hidden@host/x", "https://host/x?sig=hidden", "s3://hidden@bucket/x"):
        with pytest.raises(SpecError, match="environment") as caught:
            ImageFolder(url)
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("path", ["/data/x", "a:/b", "ftp://host/x"])
def test_a_path_is_no_url(path: str) -> None:
    assert canonical("root", path) is None


def test_a_path_object_that_swallowed_a_slash_is_refused() -> None:
    with pytest.raises(SpecError, match="as a str"):
        ImageFolder(pathlib.Path("s3://bucket/x"))


def test_a_url_travels_as_it_is_and_names_its_store() -> None:
    spec = Tar("s3://bucket/train-{000..127}.tar")
    assert source_from_wire(spec.to_wire()) == spec
    assert spec.stores == ("s3://bucket",)
    assert ImageFolder("/data", masks="https://host:81/m").stores == ("https://host:81",)
    with pytest.raises(SpecError):
        source_from_wire({**spec.to_wire(), "shards": "ftp://host/x"})


def test_below_a_root_means_whole_parts_of_a_path() -> None:
    roots = ("s3://bucket/train", "https://host")
    inside = ("s3://bucket/train", "s3://bucket/train/a", "https://host/x")
    outside = ("s3://bucket/training", "s3://bucket", "https://host.evil/x", "https://host:81/x", "http://host/x")
    assert [lies_below(url, roots) for url in (*inside, *outside)] == [True] * 3 + [False] * 5
    assert split("https://h:1/a%20b/c") == ("https://h:1", "a b/c")
    assert split("s3://b/a%20b") == ("s3://b", "a%20b")
