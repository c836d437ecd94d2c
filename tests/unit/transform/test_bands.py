"""Images of other channels and dtypes than photos: bands of satellites, 16 bits of scanners, floats."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image as Picture

from prepclient import Arrays, PrepClient, SourceUnavailable
from prepserver.pipeline.kinds import Image, Label, Mask
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import (
    CenterCrop,
    ElasticTransform,
    Normalize,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.pipeline.sources import Csv
from prepserver.source import SampleError, build_index, open_source
from prepserver.source.readers import arrays
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers
from prepserver.transform.warp import warp

Pixels = npt.NDArray[Any]
HEIGHT, WIDTH = 40, 56
LIMITS = {"uint8": (0, 255), "uint16": (0, 65535), "int16": (-32768, 32767), "float32": (0, 1000)}


def declared(channels: int, dtype: str) -> Columns:
    """The columns of a source, with the image as a user declares it."""
    kinds = {"image": Image(channels=channels, dtype=dtype), "mask": Mask(), "label": Label()}
    return Csv("/none.csv", columns=kinds).columns


def row_of(
    ops: list[Op], image: Any, columns: Columns, mask: Pixels | None = None, index: int = 0
) -> dict[str, Pixels]:
    """The fields of a row."""
    pipeline = Pipeline.from_ops(ops, 1, columns)
    (maker,) = row_makers(pipeline)
    made = {f.name: np.zeros(f.shape, f.dtype) for f in pipeline.fields}
    record = {"image": image, "mask": np.zeros((HEIGHT, WIDTH), np.uint8) if mask is None else mask, "label": 1}
    try:
        make_rows(record, SampleKey(3, 0, index), [(maker, [made[f.name] for f in maker.fields])])
    except BadSample as error:
        if not error.failures:
            pytest.fail("the row counts as made")
        raise
    return made


def bands(channels: int, dtype: str) -> Pixels:
    low, high = LIMITS[dtype]
    rng = np.random.default_rng(channels)
    return rng.integers(low, high, (HEIGHT, WIDTH, channels), endpoint=True).astype(dtype)


def npy(array: Pixels) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def encoded(array: Pixels, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Picture.fromarray(array).save(file, form)
    return file.getvalue()


MOVES: list[list[Op]] = [
    [CenterCrop(32)],
    [RandomCrop(48, padding=9, fill=7), RandomHorizontalFlip(), RandomVerticalFlip()],
    [Pad((1, 2, 3, 4), padding_mode="reflect"), CenterCrop(40)],
    [RandomZoomOut(fill=7, p=1.0), CenterCrop(64)],
    [RandomRotation(90, fill=7), CenterCrop(40)],
    [RandomAffine(30, (0.2, 0.2), (0.5, 2.0), 20, interpolation="nearest", fill=7), CenterCrop(40)],
    [RandomPerspective(0.7, 1.0, interpolation="nearest", fill=7), CenterCrop(40)],
    [ElasticTransform(80.0, 4.0, interpolation="nearest", fill=7), CenterCrop(40)],
]


@pytest.mark.parametrize("ops", MOVES, ids=lambda ops: type(ops[0]).__name__)
@pytest.mark.parametrize(("channels", "dtype"), [(13, "uint16"), (2, "float32"), (5, "uint8"), (1, "int16")])
def test_bands_move_as_their_mask_moves(ops: list[Op], channels: int, dtype: str) -> None:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] // 4
    mask = np.asarray(rows * 14 + columns + 8, np.uint8)
    image = np.repeat(mask[:, :, None], channels, 2).astype(dtype)
    for index in range(4):
        row = row_of(ops, image, declared(channels, dtype), mask, index)
        assert row["image"].dtype == dtype
        assert len(np.unique(row["mask"])) > 5
        for channel in range(channels):
            np.testing.assert_array_equal(row["image"][..., channel], row["mask"].astype(dtype))


@pytest.mark.parametrize("op", [Resize((24, 30)), Resize((60, 99), interpolation="bicubic"), RandomResizedCrop(32)])
def test_bands_are_resized_as_photos_are(op: Op) -> None:
    image = bands(13, "uint8") // 2 + np.uint8(60)  # bytes are clipped between lines and columns, too
    resized = [
        row_of([op, RandomHorizontalFlip()], image.astype(dtype), declared(13, dtype))["image"] for dtype in LIMITS
    ]
    for channel in range(12):
        photo = np.repeat(image[:, :, channel : channel + 1], 3, 2)
        due = row_of([op, RandomHorizontalFlip()], photo, declared(3, "uint8"))["image"][..., 0].astype(float)
        for found in resized:
            assert np.abs(found[..., channel].clip(0, 255) - due).max() < 1.5


def test_numbers_that_bicubic_makes_stay_within_their_dtype() -> None:
    image = np.zeros((HEIGHT, WIDTH, 1), np.uint16)
    image[:, ::7] = 65535
    made = row_of([Resize((HEIGHT, 4 * WIDTH), interpolation="bicubic")], image, declared(1, "uint16"))["image"]
    assert (made.min(), made.max()) == (0, 65535)
    assert np.abs(np.diff(made[0, :, 0].astype(int))).max() < 40000  # none wrapped around


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_a_blend_of_other_dtypes_is_that_of_bytes(dtype: str) -> None:
    image = bands(3, "uint8")
    matrix = (0.9, 0.1, 3.0, -0.2, 0.8, 9.0, 0.001, 0.002)
    due = warp(image, None, matrix, (HEIGHT, WIDTH), "bilinear", (7.0,)).astype(float)
    made = warp(image.astype(dtype), None, matrix, (HEIGHT, WIDTH), "bilinear", (7.0,)).astype(float)
    assert np.abs(made - due).max() <= (0.5 if dtype == "float32" else 0.0) + 1e-4


def test_values_of_16_bits_are_scaled_and_normalized() -> None:
    image, columns = bands(13, "uint16"), declared(13, "uint16")
    mean, std = np.linspace(100, 900, 13), np.linspace(1, 3, 13)
    ops: list[Op] = [CenterCrop(32), ToDtype(torch.float32), Normalize(mean.tolist(), std.tolist()), ToLayout("CHW")]
    normalized = row_of(ops, image, columns)["image"]
    cut = row_of([CenterCrop(32)], image, columns)["image"].astype(np.float64)
    np.testing.assert_allclose(normalized, ((cut - mean) / std).transpose(2, 0, 1), rtol=1e-5)
    scaled = row_of([CenterCrop(32), ToDtype("float32", scale=True)], image, columns)["image"]
    np.testing.assert_allclose(scaled, cut / 65535, rtol=1e-6)
    white = np.full_like(image, 65535)  # more than float16 holds
    halves = row_of([CenterCrop(32), ToDtype("float16", scale=True)], white, columns)["image"]
    assert (halves == 1.0).all()
    erased = row_of([CenterCrop(32), RandomErasing(1.0, value=[65535] * 13)], image, columns)["image"]
    assert (erased == 65535).all(2).mean() > 0.02


def test_files_of_arrays_and_grey_files_are_images() -> None:
    image = bands(13, "uint16")
    ops: list[Op] = [CenterCrop(32)]
    due = row_of(ops, image, declared(13, "uint16"))["image"]
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    for data in (npy(image), npy(np.asfortranarray(image)), npy(planes), npy(planes.reshape(1, 13, HEIGHT, WIDTH))):
        np.testing.assert_array_equal(row_of(ops, data, declared(13, "uint16"))["image"], due)
    one = declared(1, "uint16")
    due = row_of(ops, image[:, :, :1], one)["image"]
    for data in (npy(image[:, :, 0]), npy(image[:, :, :1]), encoded(image[:, :, 0]), encoded(image[:, :, 0], "TIFF")):
        np.testing.assert_array_equal(row_of(ops, data, one)["image"], due)
    photo = bands(3, "uint8")
    usual = declared(3, "uint8")
    for data in (npy(photo), encoded(photo)):
        np.testing.assert_array_equal(row_of(ops, data, usual)["image"], row_of(ops, photo, usual)["image"])


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_mask_may_be_a_file_of_an_array(dtype: str) -> None:
    mask, image = bands(1, dtype)[:, :, 0], bands(13, "uint16")
    columns: Columns = {**declared(13, "uint16"), "mask": Mask(dtype=dtype)}
    row = row_of([CenterCrop(32)], image, columns, npy(mask))  # type: ignore[arg-type]
    np.testing.assert_array_equal(row["mask"], mask[4:36, 12:44])
    for wrong in (mask.astype("int64"), mask[None, :, :, None], mask[:0]):
        with pytest.raises(BadSample, match=rf"mask \(H, W\) of dtype {dtype}, and the .npy file has the shape"):
            row_of([CenterCrop(32)], image, columns, npy(wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (npy(bands(12, "uint16")), r"\(H, W, 13\) of dtype uint16, and .* the shape \(40, 56, 12\) and dtype uint16"),
        (npy(bands(13, "int16")), "dtype int16"),
        (npy(bands(13, "uint16")[:, 0]), r"the shape \(40, 13\)"),
        (npy(bands(13, "uint16")[:0]), r"the shape \(0, 56, 13\)"),
        (npy(bands(13, "uint16"))[:-2], "damaged"),
        (npy(np.array([{}])), "Python objects"),
        (encoded(bands(3, "uint8")), "only an .npy file can hold"),
        (encoded(bands(3, "uint8"), "JPEG"), "only an .npy file can hold"),
        (b"", "only an .npy file can hold"),
    ],
)
def test_another_file_is_a_bad_sample(data: bytes, reason: str) -> None:
    for op in (CenterCrop(32), RandomResizedCrop(32)):
        with pytest.raises(BadSample, match=reason):
            row_of([op], data, declared(13, "uint16"))


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_grey_file_is_turned_as_a_photo_is(dtype: str) -> None:
    image = bands(1, "uint8")[:, :, 0]
    for form, orientation in (("PNG", 6), ("PNG", 3), ("TIFF", 6)):
        exif = Picture.Exif()
        exif[0x0112] = orientation
        file = io.BytesIO()
        Picture.fromarray(image.astype(dtype)).save(file, form, exif=exif)
        upright = np.rot90(image, 3 if orientation == 6 else 2)
        mask = np.zeros(upright.shape, np.uint8)
        made = row_of([CenterCrop(32)], file.getvalue(), declared(1, dtype), mask)["image"][:, :, 0]
        top, left = (side // 2 - 16 for side in upright.shape)
        np.testing.assert_array_equal(made, upright[top : top + 32, left : left + 32])


def test_black_and_white_are_0_and_255_and_no_palette_is_grey() -> None:
    image = np.where(bands(1, "uint8")[:, :, 0] > 127, np.uint8(255), np.uint8(0))
    file = io.BytesIO()
    Picture.fromarray(image).convert("1").save(file, "PNG")
    made = row_of([CenterCrop((HEIGHT, WIDTH))], file.getvalue(), declared(1, "uint8"))["image"]
    np.testing.assert_array_equal(made[:, :, 0], image)
    file = io.BytesIO()
    Picture.fromarray(image).convert("RGB").quantize(4).save(file, "PNG")
    with pytest.raises(BadSample, match="places in a palette"):
        row_of([CenterCrop(32)], file.getvalue(), declared(1, "uint8"))


def test_a_file_with_colours_is_no_image_of_one_channel() -> None:
    with pytest.raises(BadSample, match=r"must have one number .* this is RGB"):
        row_of([CenterCrop(32)], encoded(bands(3, "uint8")), declared(1, "uint16"))
    with pytest.raises(BadSample, match='declare dtype="uint16"'):
        row_of([CenterCrop(32)], encoded(bands(1, "uint16")[:, :, 0]), declared(1, "uint8"))


def test_arrays_of_any_order_are_the_same_images(tmp_path: Path) -> None:
    stack = np.random.default_rng(0).integers(0, 65536, (6, 2, 3, HEIGHT, WIDTH), np.uint16)  # (n, T, C, H, W)
    planes = stack.reshape(6, 6, HEIGHT, WIDTH)
    kind = Image((HEIGHT, WIDTH), channels=6, dtype="uint16")
    for number, array in enumerate((stack, planes, np.ascontiguousarray(planes.transpose(0, 2, 3, 1)))):
        np.save(tmp_path / f"{number}.npy", array)
        source = Arrays(image=tmp_path / f"{number}.npy", columns={"image": kind})
        with PrepClient(source, [CenterCrop((HEIGHT, WIDTH))], batch_size=6, inline=True, fields="dict") as client:
            assert (next(iter(client))["image"].numpy() == planes).all()
    np.save(tmp_path / "other.npy", planes[:, :5])
    other = Arrays(image=tmp_path / "other.npy", columns={"image": kind})
    with (
        PrepClient(other, [CenterCrop(8)], batch_size=6, inline=True) as client,
        pytest.raises(SourceUnavailable, match=r"holds rows of shape \(5, 40, 56\)"),
    ):
        next(iter(client))


@pytest.mark.filterwarnings("error")
def test_only_the_shown_part_of_a_large_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is the mapping of the file; the rows are the same, and nothing can write to it."""
    numbers = np.stack([bands(2, "uint16") + np.uint16(k) for k in range(3)])
    np.save(tmp_path / "x.npy", numbers)
    np.save(tmp_path / "mask.npy", numbers[..., 0].copy())
    size = (HEIGHT, WIDTH)
    columns = {"x": Image(size, 2, "uint16"), "mask": Mask(size, "uint16")}
    source = Arrays(x=tmp_path / "x.npy", mask=tmp_path / "mask.npy", columns=columns)
    ops = [RandomCrop(12), RandomVerticalFlip(), RandomRotation(90), ToDtype("float32")]
    batches = []
    for limit in (arrays._MAPPED_BYTES, 0):
        monkeypatch.setattr(arrays, "_MAPPED_BYTES", limit)
        record = open_source(source, build_index(source, tmp_path / "cache").path).read(1)
        assert np.array_equal(record["x"], numbers[1])
        assert {record[name].flags.writeable for name in columns} == {limit > 0}
        with PrepClient(source, ops, batch_size=3, inline=True) as client:
            batches.append(next(iter(client)))
    assert all(map(torch.equal, *batches))
    opened = open_source(source, build_index(source, tmp_path / "cache").path)
    np.save(tmp_path / "x.npy", numbers[:2])
    with pytest.raises(SampleError, match="has changed"):
        opened.read(1)
