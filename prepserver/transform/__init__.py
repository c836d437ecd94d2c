"""Encoded bytes to rows: header, decode, ops on arrays. A row is a pure function of (data, pipeline, key)."""

from prepserver.pipeline.random_words import SampleKey
from prepserver.transform.errors import BadSample, is_shortage
from prepserver.transform.heads import after_head
from prepserver.transform.native import path
from prepserver.transform.pillow import hush_libtiff
from prepserver.transform.rowmaker import Plan, RowMaker, row_makers
from prepserver.transform.rows import DECODING, make_rows

__all__ = [
    "DECODING", "BadSample", "Plan", "RowMaker", "SampleKey", "after_head", "hush_libtiff", "is_shortage", "make_rows",
    "path", "row_makers",
]  # fmt: skip
