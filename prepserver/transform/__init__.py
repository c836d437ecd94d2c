"""Encoded bytes to rows: header, decode, ops on arrays. A row is a pure function of (data, pipeline, key)."""

from prepserver.transform.draw import SampleKey
from prepserver.transform.errors import BadSample
from prepserver.transform.native import path
from prepserver.transform.rowmaker import Plan, RowMaker, row_makers
from prepserver.transform.rows import make_rows

__all__ = ["BadSample", "Plan", "RowMaker", "SampleKey", "make_rows", "path", "row_makers"]
