"""Numbers of cells: the short way, for those that surely fit, gives what the checks of all others give."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pipeline import kinds
from prepserver.source import values
from prepserver.source.arrow_values import Values, values_of
from prepserver.source.errors import SampleError
from prepserver.source.values import parsed, value_of

LISTS = [kinds.Tokens(), *(kinds.Array(shape, dtype) for shape in (None, (2,)) for dtype in kinds.ITEM_BYTES)]
KINDS = [kinds.Label(), *map(kinds.Scalar, kinds.ITEM_BYTES), kinds.Scalar("int16", missing=7)]

EDGES = [0, 1, *(2**bits for bits in (7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64, 65))]
FLOATS = [
    *(math.nextafter(float(edge), to) for edge in EDGES for to in (-math.inf, math.inf)),
    *(float(np.finfo(dtype).max) * factor for dtype in ("float16", "float32") for factor in (1, 1.00001, 1.1)),
    65519.999, 65520.0, 1e39, 1.7e308, 5e-324, 1e-46, math.nan, math.inf,
]  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from([sign * (edge + more) for edge in EDGES for more in (-1, 0, 1) for sign in (-1, 1)]),
    st.sampled_from([sign * each for each in (*FLOATS, *map(float, EDGES)) for sign in (-1, 1)]),
    st.integers(),
    st.integers(-1000, 1000).map(float),
    st.floats(),
    st.floats(width=16),
    st.booleans(),
)


def made(read: Any, kind: kinds.Kind, cell: Any) -> tuple[Any, ...]:
    """All that can be told of a value, or its error."""
    try:
        value = read("it", kind, cell)
    except SampleError as error:
        return (str(error),)
    return type(value), value.dtype, value.shape, value.tobytes()


@given(st.sampled_from(KINDS), NUMBERS, st.sampled_from(["{}", "{} ", "+{}", "{}0", "_{}", "{}x"]))
def test_the_short_way_gives_what_the_long_one_gives(kind: kinds.Kind, number: Any, form: str) -> None:
    cell = form.format(number)
    short = made(value_of, kind, number), made(parsed, kind, cell)
    with mock.patch.dict(values._SURE, clear=True):
        assert short == (made(value_of, kind, number), made(parsed, kind, cell))


@given(st.sampled_from(LISTS), st.lists(NUMBERS, max_size=3), st.booleans(), st.sampled_from([*kinds.ITEM_BYTES]))
def test_lists_whose_type_fits_need_no_check(kind: kinds.Kind, numbers: list[Any], nested: bool, dtype: str) -> None:
    with np.errstate(all="ignore"):
        array = np.array(numbers, np.float64).astype(dtype)
    for cell in (numbers, array, array.reshape(-1, 1) if nested else array.astype(array.dtype.newbyteorder())):
        short = made(value_of, kind, cell)
        with mock.patch.object(np, "can_cast", return_value=False):
            assert short == made(value_of, kind, cell)


@given(
    st.sampled_from([kinds.Tokens(), *(kinds.Array(None, dtype) for dtype in ("int16", "float16", "float64"))]),
    st.lists(st.lists(st.integers(-100, 200)), min_size=3),
    st.sampled_from(["int8", "int16", "int64", "uint8", "uint64", "float32", "bool_"]),
    st.sampled_from([pa.list_, pa.large_list]),
    st.booleans(),
)
def test_lists_of_arrow_are_cut_from_one_array(
    kind: kinds.Kind, rows: list[list[int]], dtype: str, form: Any, null: bool
) -> None:
    numbers = [np.array(row, np.int64).astype(dtype).tolist() for row in rows]
    array = pa.array([*numbers, *[None] * null, numbers[0]], form(getattr(pa, dtype)())).slice(1)
    cut, each = values_of("it", kind, array), Values("it", kind, array)
    assert cut.nbytes == each.nbytes
    for row in range(len(array)):
        shown = [made(lambda *_, by=by, row=row: by.value(row), kind, None) for by in (cut, each)]
        assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("dtype", "number", "result"),
    [
        ("float32", 0.1, np.float32(0.1)), ("float16", 65519.0, 65504.0), ("float32", 2**24 + 1, 2.0**24),
        ("float64", 2**53, 2.0**53), ("int64", 3.0, 3), ("int64", -0.0, 0), ("uint64", 2**64 - 1, 2**64 - 1),
        ("bool", 1.0, True), ("int8", True, 1), ("float32", True, 1.0), ("uint8", 255, 255),
    ],
)  # fmt: skip
def test_numbers_of_python_become_their_column_s(dtype: str, number: Any, result: Any) -> None:
    value = value_of("it", kinds.Scalar(dtype), number)
    assert (value.dtype, value.shape, value) == (np.dtype(dtype), (), result)
    value[()] = 0  # a copy of nothing: an op may write to it


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("float16", 65520.0), ("float32", 1e39), ("int64", 2.0**53), ("int64", 2**63), ("int8", 128), ("uint8", -1),
        ("bool", 2), ("int32", 0.5), ("int32", math.nan), ("float64", 2**64),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(dtype: str, number: Any) -> None:
    with pytest.raises(SampleError, match=f"^its it is .*, and must be a number of type {dtype}"):
        value_of("it", kinds.Scalar(dtype), number)
