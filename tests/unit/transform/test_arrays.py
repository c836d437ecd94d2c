"""Arrays whose length differs: cut, from random places too, and filled up to one shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from prepserver.pipeline.kinds import Array, Tokens
from prepserver.pipeline.ops import PadArray, PadTokens, Truncate
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers


def made(ops: list[Any], columns: Columns, record: dict[str, Any], iteration: int = 0) -> dict[str, Any]:
    """The row that a pipeline makes of a record in a pass."""
    (maker,) = row_makers(Pipeline.from_ops(ops, columns=columns))
    rows = [np.full(field.shape, 77, field.dtype) for field in maker.fields]
    make_rows({**record, "index": 0}, SampleKey(0, iteration, 0), [(maker, rows)])
    return dict(zip((field.name for field in maker.fields), rows, strict=True))


@given(arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 3)), elements=st.floats(-9, 9, width=32)))
def test_padding_is_numpy_s(array: np.ndarray[Any, Any]) -> None:
    row = made([PadArray((5, 3), "x", -1.0, "mask", "n")], {"x": Array()}, {"x": array})
    count, width = array.shape
    expected = np.pad(array, ((0, 5 - count), (0, 3 - width)), constant_values=-1)
    assert row["x"].dtype == np.float32
    assert row["x"].tolist() == expected.tolist()
    assert row["mask"].tolist() == [1] * count + [0] * (5 - count)
    assert row["n"] == count


def test_numbers_of_any_type_are_filled_and_a_list_may_be_empty() -> None:
    for dtype, value in (("bool", 1), ("uint8", 255), ("int64", -5), ("float16", 0.5)):
        row = made([PadArray(3, "x", value)], {"x": Array(None, dtype)}, {"x": np.zeros(2, dtype)})
        assert (row["x"].dtype, row["x"].tolist()) == (np.dtype(dtype), [0, 0, value])
    row = made([PadArray((2, 2), "x", 7, count="n")], {"x": Array()}, {"x": np.zeros(0, np.float32)})
    assert (row["x"].tolist(), row["n"]) == ([[7, 7], [7, 7]], 0)


@pytest.mark.parametrize(
    ("shape", "said"),
    [((4, 2), r"put Truncate before it"), ((2, 3), r"\(2, 3\), and PadArray\(\(3, 2\)\) follows$"), ((2,), "follows$")],
)
def test_an_array_that_does_not_fit_is_bad(shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(BadSample, match=said):
        made([PadArray((3, 2), "x")], {"x": Array()}, {"x": np.zeros(shape, np.float32)})


def test_a_single_number_is_no_list() -> None:
    for op, said in (
        (PadArray(3, "x"), r"the shape \(\), and PadArray\(\(3,\)\) follows$"),
        (Truncate(3, "x"), "cuts lists"),
    ):
        with pytest.raises(BadSample, match=said):
            made([op, PadArray(3, "x")], {"x": Array()}, {"x": np.array(1.5, np.float32)})


def test_arrays_are_cut_at_either_end() -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    for side, kept in (("right", array[:4]), ("left", array[2:])):
        cut = Truncate(4, "x", side)  # type: ignore[arg-type]
        assert made([cut], {"x": Array((6, 2))}, {"x": array})["x"].tolist() == kept.tolist()
        assert made([cut, PadArray((4, 2), "x")], {"x": Array()}, {"x": array})["x"].tolist() == kept.tolist()


def test_several_columns_are_cut_at_the_same_random_place() -> None:
    """Every place is as likely, and a pass draws another one."""
    columns: Columns = {"x": Array(), "tokens": Tokens(), "y": Array((10,), "int16")}
    record = {"x": np.arange(10, dtype=np.float32), "tokens": np.arange(10), "y": np.arange(10, dtype=np.int16)}
    ops = [Truncate(4, ["x", "tokens", "y"], "random"), PadArray(4, "x"), PadTokens(4, mask=None)]
    begins = []
    for iteration in range(400):
        row = made(ops, columns, record, iteration)
        begins.append(int(row["x"][0]))
        for each in row["x"], row["tokens"], row["y"]:
            assert each.tolist() == list(range(begins[-1], begins[-1] + 4))
    counts = np.bincount(begins, minlength=7)
    assert len(counts) == 7
    assert counts.min() > 400 / 7 / 2


def test_columns_that_differ_in_length_are_bad() -> None:
    with pytest.raises(BadSample, match="has 3 x, 4 y: Truncate cuts columns of one length alike"):
        made(
            [Truncate(2, ["x", "y"])], {"x": Array((3,)), "y": Array((4,))},
            {"x": np.zeros(3, np.float32), "y": np.zeros(4, np.float32)},
        )  # fmt: skip
