"""Rows of images and labels, the usual case, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepserver import transform
from prepserver.pipeline.record import field_name
from prepserver.protocol.layout import Field, RingLayout, ring_fields
from prepserver.protocol.packed import IndexedScan
from prepserver.transform import RowMaker, SampleKey

SMALL = {"label": torch.int64, "index": torch.int64}
"""The fields of one number, as a device's stage is told of them."""


def sample_fields(shape: tuple[int, ...], dtype: str, views: int = 1) -> tuple[Field, ...]:
    """The fields of a row of images, a label and an index."""
    images = [(field_name("image", view), dtype, shape) for view in range(views)]
    return ring_fields([*images, ("label", "int64", ()), ("index", "int64", ())])


def sample_layout(rows: int, shape: tuple[int, ...], dtype: str, views: int = 1) -> RingLayout:
    """The layout of a ring of such rows."""
    return RingLayout(rows, sample_fields(shape, dtype, views))


def make_rows(data: bytes | IndexedScan, key: SampleKey, targets: Sequence[tuple[RowMaker, Any]]) -> None:
    """`prepserver.transform.make_rows` of a sample that is an image, for makers that make one."""
    transform.make_rows({"image": data}, key, [(maker, [out]) for maker, out in targets])
