"""Where rows lie: fields never overlap, runs wrap once, and whole pages are whole."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.pipeline.pipeline import MAX_VIEWS
from prepserver.protocol.layout import (
    ITEM_BYTES,
    MAX_RING_BYTES,
    PAGE_BYTES,
    Field,
    RingLayout,
    whole_page_rows,
)
from prepserver.protocol.schema import ProtocolError
from tests.support.images import sample_layout

SHAPES = st.lists(st.integers(1, 40), max_size=4)
LAYOUTS = st.builds(
    lambda rows, fields: RingLayout(rows, tuple(Field(f"f{i}", d, s) for i, (d, s) in enumerate(fields))),
    st.integers(1, 3000),
    st.lists(st.tuples(st.sampled_from(sorted(ITEM_BYTES)), SHAPES), min_size=1, max_size=8),
)


@given(LAYOUTS)
def test_fields_follow_each_other_on_pages_and_never_overlap(layout: RingLayout) -> None:
    at = 0
    for field in layout.fields:
        offset = layout.offset(field.name)
        assert offset % PAGE_BYTES == 0
        assert offset >= at
        at = offset + layout.rows * field.row_bytes
    assert at <= layout.nbytes < at + PAGE_BYTES
    assert layout.nbytes % PAGE_BYTES == 0


@given(LAYOUTS)
def test_a_layout_comes_back_from_its_wire_form(layout: RingLayout) -> None:
    assert RingLayout.from_wire(layout.to_wire()) == layout


@given(st.integers(1, 500), st.integers(0, 2**62), st.data())
def test_the_spans_of_a_run_are_its_rows_in_order(rows: int, start: int, data: st.DataObject) -> None:
    layout = sample_layout(rows, (2, 2, 3), "uint8")
    count = data.draw(st.integers(0, rows))
    spans = layout.spans(start, start + count)
    assert len(spans) <= 2
    assert [row for a, b in spans for row in range(a, b)] == [p % rows for p in range(start, start + count)]


@pytest.mark.parametrize(("start", "stop"), [(5, 4), (0, 11), (7, 18)])
def test_a_run_that_does_not_fit_the_ring_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="does not fit a ring of 10 rows"):
        sample_layout(10, (1, 1, 3), "uint8").spans(start, stop)


@given(st.integers(1, 10**7))
def test_whole_page_rows_is_the_fewest_rows_that_fill_pages(row_bytes: int) -> None:
    rows = whole_page_rows(row_bytes)
    assert rows * row_bytes % PAGE_BYTES == 0
    assert all(less * row_bytes % PAGE_BYTES for less in (rows // 2, rows - 1) if 0 < less < rows)
    assert PAGE_BYTES % rows == 0


def test_a_sample_has_an_image_a_label_and_an_index() -> None:
    layout = sample_layout(8, (224, 224, 3), "uint8")
    assert [(f.name, f.dtype, f.row_bytes) for f in layout.fields] == [
        ("image", "uint8", 150528), ("label", "int64", 8), ("index", "int64", 8),
    ]  # fmt: skip


def test_each_view_has_an_array_of_its_own() -> None:
    layout = sample_layout(8, (224, 224, 3), "uint8", views=3)
    assert [f.name for f in layout.fields] == ["image", "image_1", "image_2", "label", "index"]
    assert [field.row_bytes for field in layout.dense] == [150528] * 3
    assert [layout.offset(field.name) for field in layout.dense] == [0, 8 * 150528, 2 * 8 * 150528]
    assert [field.name for field in layout.scalars] == ["label", "index"]
    assert layout.nbytes == 3 * 8 * 150528 + 2 * PAGE_BYTES
    assert sample_layout(8, (224, 224, 3), "uint8", views=1) == sample_layout(8, (224, 224, 3), "uint8")
    most = sample_layout(8, (224, 224, 3), "uint8", MAX_VIEWS)
    assert RingLayout.from_wire(most.to_wire()) == most


def test_a_field_that_is_not_there_is_a_key_error() -> None:
    layout = sample_layout(8, (1, 1, 3), "uint8")
    assert layout.field("label") is layout.fields[1]
    with pytest.raises(KeyError, match="mask"):
        layout.field("mask")
    with pytest.raises(KeyError, match="mask"):
        layout.offset("mask")


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        ({"rows": 0, "fields": []}, "rows"),
        ({"rows": 2**31 + 1, "fields": []}, "rows"),
        ({"rows": 1}, "fields"),
        ({"rows": 1, "fields": [{"name": "a", "dtype": "object", "shape": []}]}, "dtype 'object'"),
        ({"rows": 1, "fields": [{"name": "a", "dtype": "uint8", "shape": [0]}]}, "shape"),
        ({"rows": 1, "fields": [{"name": "a", "dtype": "uint8", "shape": [1] * 9}]}, "shape"),
        ({"rows": 2**31, "fields": [{"name": "a", "dtype": "int64", "shape": [2**20]}]}, f"at most {MAX_RING_BYTES}"),
        ({"rows": 1, "fields": [{"name": "a", "dtype": "uint8", "shape": []}] * 2}, "'a' appears twice"),
        ({"rows": 1, "fields": [], "more": 1}, "more"),
    ],
)
def test_a_wire_form_that_is_no_layout_is_refused(wire: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        RingLayout.from_wire(wire)
