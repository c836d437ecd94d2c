"""Stored pixels: any part has the bytes of the whole, by compiled code and without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.protocol.packed import StoredPixels, pixels_record, read_record
from prepserver.source.scenes import scene
from prepserver.transform import native
from prepserver.transform.native.compiled import VECTORS
from prepserver.transform.stage import Box
from prepserver.transform.stored import StoredImage, _rgb, stored_bytes


def stored(height: int, width: int, form: str, seed: int = 0) -> StoredPixels:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    head, _, body = read_record(pixels_record(1, (height, width), form, stored_bytes(image, form)))
    return StoredPixels(head, body)


def photo(form: str) -> np.ndarray:
    image = scene(1, 61, 83, 0)
    head, _, body = read_record(pixels_record(1, (61, 83), form, stored_bytes(image, form)))
    return StoredImage(StoredPixels(head, body)).clean(Box(0, 0, 61, 83)).astype(int) - image


@pytest.mark.parametrize("vectors", ["none", *VECTORS[:2]])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_part_is_cut_from_the_same_image(vectors: str, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([1, 2, 7, 513, 1030]))
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    part = Box(top, left, data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width)))
    kept = stored(height, width, "yuv420", height)
    whole = _rgb(kept, Box(0, 0, height, width))
    if vectors == "none":
        assert np.array_equal(_rgb(kept, part), part.of(whole))
    elif (compiled := native.kernels()) is not None:
        before, out = compiled.vectors, np.empty(part.of(whole).shape, np.uint8)
        compiled.use_vectors(vectors)
        try:
            assert compiled.yuv(kept, part, out)
        finally:
            compiled.use_vectors(before)
        assert np.array_equal(out, part.of(whole))


def test_rgb_keeps_every_bit_and_yuv_what_eyes_see() -> None:
    assert not photo("rgb").any()
    error = photo("yuv420")
    assert 0 < np.sqrt((error**2).mean()) < 4
    grey = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, 2)
    head, _, body = read_record(pixels_record(1, (16, 16), "yuv420", stored_bytes(grey, "yuv420")))
    assert np.array_equal(StoredImage(StoredPixels(head, body)).clean(Box(0, 0, 16, 16)), grey)


def test_the_formula_stays() -> None:
    """A packed dataset gives the same rows with every release."""
    image = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 0]]], np.uint8)
    made = stored_bytes(image, "yuv420")
    assert list(made) == [76, 150, 29, 226, 96, 133]
    head, _, body = read_record(pixels_record(1, (2, 2), "yuv420", made))
    whole = _rgb(StoredPixels(head, body), Box(0, 0, 2, 2))
    assert whole[:, :, 0].tolist() == [[83, 157], [36, 233]]
    assert whole[:, :, 1].tolist() == [[83, 157], [36, 233]]
    assert whole[:, :, 2].tolist() == [[19, 93], [0, 169]]
