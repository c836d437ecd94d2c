"""Images of other channels and dtypes than photos: what may be declared, and which ops take them."""

from __future__ import annotations

import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Image, Label, Mask
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import (
    JPEG,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    GaussianNoise,
    LinearTransformation,
    Normalize,
    Pad,
    RandomChannelPermutation,
    RandomErasing,
    RandomHorizontalFlip,
    ToDtype,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.pipeline.sources import Csv

HEIGHT, WIDTH = 40, 56


def declared(channels: int, dtype: str) -> Columns:
    """The columns of a source, with the image as a user declares it."""
    kinds = {"image": Image(channels=channels, dtype=dtype), "mask": Mask(), "label": Label()}
    return Csv("/none.csv", columns=kinds).columns


@pytest.mark.parametrize(
    ("channels", "dtype", "op", "reason"),
    [
        (13, "uint8", ColorJitter(0.2), "works on 1 or 3 channels, and the image has 13"),
        (13, "uint8", RandomChannelPermutation(), "works on 1 or 3 channels, and the image has 13"),
        (13, "uint8", AutoAugment(), "works on 1 or 3 channels"),
        (3, "uint16", JPEG(50), "works on uint8: .* The image is uint16 here"),
        (3, "float32", ColorJitter(0.2), "works on uint8: .* The image is float32 here"),
        (3, "uint16", GaussianNoise(), r"put ToDtype\('float32'\) before it"),
        (3, "float32", GaussianNoise(), "cuts to 0..1"),
        (3, "uint16", RandomErasing(value="random"), "for uint8 and floats, and the image is uint16"),
        (3, "uint16", RandomErasing(value=65536), "whole numbers from 0 to 65535 while the image is uint16"),
        (3, "int16", Pad(1, fill=-32769), "whole numbers from -32768 to 32767"),
        (13, "uint16", Pad(1, fill=(1, 2, 3)), "1 value or one for each of 13 channels"),
        (13, "uint16", Normalize([0.5], [0.5]), r"put ToDtype\('float32'\) before it"),
        (13, "uint16", ToDtype("uint8"), "cannot follow uint16"),
        (13, "uint16", ToDtype("float16"), "ends at 65504, and uint16 goes to 65535: pass scale=True"),
        (13, "uint16", LinearTransformation("/m.npy", 0.0), "needs floats"),
    ],
)
def test_ops_that_cannot_change_such_an_image_say_why(channels: int, dtype: str, op: Op, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Pipeline.from_ops([CenterCrop(8), op], 1, declared(channels, dtype))
    if dtype == "int16":
        Pipeline.from_ops([CenterCrop(8), Pad(1, fill=-32768)], 1, declared(channels, dtype))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Image(channels=0), "must lie between 1 and 1024"),
        (Image(channels=1025), "must lie between 1 and 1024"),
        (Image(dtype="float64"), "must be 'uint8' or 'uint16' or 'int16' or 'float16' or 'float32'"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(kind: Image, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Csv("/none.csv", columns={"image": kind})


@pytest.mark.parametrize("shape", [(13, HEIGHT, WIDTH), (HEIGHT, WIDTH, 13), (HEIGHT, WIDTH)])
def test_no_mask_moves_without_its_pixels(shape: tuple[int, ...]) -> None:
    columns: Columns = {"x": Array(shape, "uint16"), "mask": Mask((HEIGHT, WIDTH))}
    with pytest.raises(SpecError, match="would move the mask and leave x as it is"):
        RandomHorizontalFlip().after(columns)
    for other in (Image((HEIGHT, WIDTH)), Array((HEIGHT,))):
        assert RandomHorizontalFlip().after({**columns, "x": other})["x"] == other
