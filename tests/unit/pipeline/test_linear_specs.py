"""`LinearTransformation` as data: its files are part of what it is, and what cannot be is refused at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import code_of
from prepserver.pipeline.ops import (
    CenterCrop,
    Grayscale,
    LinearTransformation,
    Normalize,
    RandomApply,
    Resize,
    ToDtype,
    op_from_wire,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.spec import FILE

FLOATS = ToDtype("float32", scale=True)


def test_what_the_files_hold_is_part_of_the_pipeline() -> None:
    op = LinearTransformation("/matrix.npy", "/mean.npy")
    pipeline = Pipeline.from_ops([Resize((4, 5)), FLOATS, op])
    assert pipeline.files == ["/matrix.npy", "/mean.npy"]
    known = pipeline.with_code({(FILE, "/matrix.npy"): "a" * 64, (FILE, "/mean.npy"): "b" * 64})
    other = pipeline.with_code({(FILE, "/matrix.npy"): "b" * 64, (FILE, "/mean.npy"): "a" * 64})
    assert len({pipeline.digest, known.digest, other.digest}) == 3
    assert known.code
    assert op.with_code({(FILE, "/mean.npy"): "b" * 64}) == op
    of_numbers = LinearTransformation("/matrix.npy", 0)
    assert of_numbers.files == ["/matrix.npy"]
    assert of_numbers.with_code({(FILE, "/matrix.npy"): "a" * 64}).code == "a" * 64
    wanted = LinearTransformation("/matrix.npy", "/mean.npy", code=code_of(["b" * 64, "a" * 64]))
    with pytest.raises(SpecError, match=r"code = .*: is not the content of /matrix\.npy and /mean\.npy, which is"):
        wanted.with_code({(FILE, "/matrix.npy"): "a" * 64, (FILE, "/mean.npy"): "b" * 64})


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ([Resize((4, 5))], r"pipeline\[1\].op .*needs floats: put ToDtype\('float32', scale=True\) before it"),
        ([Resize(8), FLOATS], r"pipeline\[2\].op .*needs images of one size"),
        ([CenterCrop(64), FLOATS], "have 12288 values, whose matrix is 576 MiB of float32, more than 256: resize"),
        ([CenterCrop(8), Grayscale(1), FLOATS], r"mean_vector = .*must be 1 number or 64, one for each value"),
        ([CenterCrop(64), Grayscale(1), FLOATS], "must be 1 number or 4096"),
    ],
)
def test_images_that_have_no_product_are_refused_at_once(ops: list[Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Pipeline.from_ops([*ops, LinearTransformation("/m.npy", [0.5, 0.5])])


def test_parameters_are_a_path_and_a_path_or_numbers() -> None:
    for matrix, mean, field in (
        ("/m.npz", 0, "transformation_matrix"), (np.eye(3), 0, "transformation_matrix"),
        ("/m.npy", "/m.pt", "mean_vector"), ("/m.npy", [0.0] * 1025, "mean_vector"), ("/m.npy", [None], "mean_vector"),
        ("/m.npy", np.zeros(3), "mean_vector"), ("/m.npy", (), "mean_vector"),
    ):  # fmt: skip
        with pytest.raises(SpecError) as caught:
            LinearTransformation(matrix, mean)  # type: ignore[arg-type]
        assert caught.value.field == field
    op = LinearTransformation("/m.npy", (1, 2.5))
    assert op_from_wire(op.to_wire()) == op
    for name in op.paths:
        with pytest.raises(SpecError, match=f"{name} = 'm.npy': must be an absolute path"):
            op_from_wire(op.to_wire() | {name: "m.npy"})
    with pytest.raises(SpecError, match="transforms"):
        RandomApply([op])
    # Nobody knows the range of the values afterwards.
    Pipeline.from_ops([CenterCrop(1), FLOATS, LinearTransformation("/m.npy", 0), Normalize([99], [1])])
