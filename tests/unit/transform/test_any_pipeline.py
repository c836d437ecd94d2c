"""Random pipelines of all ops, on everything that a sample may hold: the same rows whoever makes them, and how."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pipeline.kinds import Array
from prepserver.pipeline.ops import OPS
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.source import Record
from tests.support import augmentations
from tests.support.augmentations import pipelines
from tests.support.scenes import COLUMNS, Scenes, rows_of, same, scene

PathOf = Callable[..., AbstractContextManager[None]]


def pasted(number: int) -> Record:
    """A scene whose boxes have their labels on its mask, so that `CopyPaste` finds two objects."""
    height, width = 26 + 3 * number, 40 - 2 * number
    classes = np.full((height, width), 1 + number, np.uint8)
    classes[2 : height // 2, 1 : width // 2] = 100 + number
    found = scene(number, height, width, ("PNG", "JPEG")[number % 2])
    track = np.arange(2.0 * number, dtype=np.float32).reshape(number, 2)
    return {**found, "classes": classes, "labels": np.array([1 + number, 100 + number]), "track": track}


SOURCE = Scenes([pasted(number) for number in range(5)])
ALL: Columns = {**COLUMNS, "track": Array()}
SOME = {name: kind for name, kind in ALL.items() if name != "joints"}
ELSEWHERE = {"PluginOp", "Tokenize"}
"""They need code or a file of the daemon's owner: tests of plug-ins and of text have them."""


@settings(max_examples=12, deadline=None)
@given(data=st.data(), columns=st.sampled_from([SOME, ALL]), cut=st.integers(1, 5))
def test_any_pipeline_makes_the_same_rows_on_both_paths(
    path_of: PathOf, data: st.DataObject, columns: Columns, cut: int
) -> None:
    pipeline = Pipeline.from_ops(*data.draw(pipelines(columns)), columns)
    assert Pipeline.from_wire(pipeline.to_wire(), columns) == pipeline
    with path_of("pure"):
        rows, bad = rows_of(SOURCE.stream(), pipeline, cut, 6 - cut, start=3)
    with path_of("native"):
        again, bad_again = rows_of(SOURCE.stream(), pipeline, 6, start=3)
    assert same(rows, again)
    assert bad == bad_again


def test_the_random_pipelines_have_all_ops() -> None:
    drawn = Path(augmentations.__file__).read_text()
    there = ELSEWHERE | {type(op).__name__ for op in augmentations.SAME_SIZE}
    missing = [n for n in OPS if n not in there and not re.search(rf"\b{n}\(|builds\({n}\b", drawn)]
    assert missing == [], "add an example to a list of tests/support/augmentations.py"
