from __future__ import annotations

import hashlib
import io
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from prepserver.pipeline.sources import SyntheticImages
from prepserver.source import Source, build_index, open_source
from prepserver.source.scenes import scene


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def opened(spec: SyntheticImages, cache: Path) -> Source:
    return open_source(spec, build_index(spec, cache).path)


def test_samples_are_jpegs_of_the_size_with_labels_in_range(cache: Path) -> None:
    source = opened(SyntheticImages(300, size=(40, 60), num_classes=7), cache)
    for index in range(300):
        record = source.read(index)
        assert simplejpeg.decode_jpeg_header(record["image"])[:2] == (40, 60)
        assert record["label"] == source.label(index)
    assert {source.label(index) for index in range(300)} == set(range(7))
    assert (len(source), source.classes()) == (300, [])


def test_samples_differ_and_their_comments_name_the_index(cache: Path) -> None:
    source = opened(SyntheticImages(200, size=32), cache)
    samples = [source.read(index)["image"] for index in range(200)]
    assert len(set(samples)) == 200
    with Image.open(io.BytesIO(samples[123])) as image:
        assert image.info["comment"] == b"prepserver synthetic seed=0 index=123"
        assert "jfif" in image.info


def test_both_decoders_read_a_sample_alike(cache: Path) -> None:
    data = opened(SyntheticImages(10, size=(64, 96)), cache).read(3)["image"]
    with Image.open(io.BytesIO(data)) as image:
        by_pillow = np.asarray(image.convert("RGB"), dtype=int)
    assert np.abs(simplejpeg.decode_jpeg(data).astype(int) - by_pillow).mean() < 2


def test_pictures_are_chosen_evenly(cache: Path) -> None:
    source = opened(SyntheticImages(10**12, size=16), cache)
    counts = Counter(source.read(index)["image"].partition(b"index=")[2][12:] for index in range(10**11, 10**11 + 3200))
    assert len(counts) == 32
    assert min(counts.values()) > 60


def test_a_sample_depends_on_seed_and_index_alone(tmp_path: Path, cache: Path) -> None:
    few, many = SyntheticImages(50, size=24), SyntheticImages(10**9, size=24)
    one, other = opened(few, tmp_path / "a"), opened(many, tmp_path / "b")
    assert [one.read(i) for i in range(50)] == [other.read(i) for i in range(50)]
    another = opened(SyntheticImages(50, size=24, seed=1), cache)
    assert one.read(0)["image"] != another.read(0)["image"]
    assert [one.label(i) for i in range(50)] != [another.label(i) for i in range(50)]


def test_a_source_keeps_no_pictures(cache: Path) -> None:
    """Each stream has a source of its own in each worker: 128 workers with 64 streams would keep 27 GB."""
    spec = SyntheticImages(64, size=(200, 300))
    path = build_index(spec, cache).path
    tracemalloc.start()
    try:
        source = open_source(spec, path)
        read_bytes = sum(len(source.read(index)["image"]) for index in range(64))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < path.stat().st_size / 10 < read_bytes


def test_one_bank_serves_any_number_of_samples(tmp_path: Path) -> None:
    """The digests of the samples differ."""
    few = build_index(SyntheticImages(50, size=24), tmp_path / "c")
    many = build_index(SyntheticImages(10**12, size=24), tmp_path / "c")
    assert few.path == many.path
    assert (few.samples, many.samples, many.num_classes) == (50, 10**12, 1000)
    assert few.digest != many.digest


@pytest.mark.parametrize("size", [(1, 1), (1, 70), (300, 2), (17, 9)])
def test_odd_sizes_are_drawn(size: tuple[int, int], cache: Path) -> None:
    source = opened(SyntheticImages(3, size=size), cache)
    assert simplejpeg.decode_jpeg(source.read(2)["image"]).shape == (*size, 3)


def test_an_index_out_of_range_is_refused(cache: Path) -> None:
    source = opened(SyntheticImages(5, size=24), cache)
    for index in (-1, 5):
        with pytest.raises(IndexError, match="of a source of 5"):
            source.read(index)


def test_pixels_are_those_of_the_first_release() -> None:
    picture = scene(7, 61, 47, 1)
    assert picture.shape == (61, 47, 3)
    assert picture.dtype == np.uint8
    digest = hashlib.sha256(picture.tobytes()).hexdigest()
    assert digest == "d3f9befa5a83e15928a90bfb9a2fce3c0cf305c42d723905ba20ed24a714e70f"


def test_the_spectrum_falls_like_that_of_photos() -> None:
    power = np.zeros((256, 256))
    for number in range(4):
        grey = scene(0, 256, 256, number).mean(axis=2)
        power += np.abs(np.fft.fft2(grey - grey.mean())) ** 2
    rows, columns = np.indices(power.shape)
    radius = np.hypot(np.minimum(rows, 256 - rows), np.minimum(columns, 256 - columns))
    rings = [(radius >= low) & (radius < 2 * low) for low in (3, 6, 12, 24)]
    slope = np.polyfit(np.log([4.3, 8.6, 17.2, 34.4]), np.log([power[ring].mean() for ring in rings]), 1)[0]
    assert -3.4 < slope < -2.2


def test_colours_go_together_and_contrast_is_that_of_photos() -> None:
    pixels = np.concatenate([scene(0, 375, 500, number).reshape(-1, 3) for number in range(3)]).astype(float)
    correlation = np.corrcoef(pixels.T)
    assert correlation.min() > 0.5
    assert ((pixels.std(axis=0) > 35) & (pixels.std(axis=0) < 75)).all()


def test_samples_have_the_bytes_per_pixel_of_photos(cache: Path) -> None:
    source = opened(SyntheticImages(100), cache)
    mean_bytes = sum(len(source.read(index)["image"]) for index in range(100)) / 100
    assert 0.5 < mean_bytes / (375 * 500) < 0.65
