"""Values that are made for many samples at once: the same rows as one by one, and the same verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepserver import plugins
from prepserver.order import make_order
from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import MaskTokens, PadTokens, PluginOp, Tokenize, Truncate
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.random_words import SampleKey
from prepserver.pipeline.record import images
from prepserver.source import Record, SampleError, Source
from prepserver.transform.ops import stage_of
from prepserver.transform.stage import Draws
from prepserver.worker.fill import fill
from prepserver.worker.streams import Stream
from tests.support import texts
from tests.support.tiny_images import OwnLane, nothing

N = 23
COLUMNS = {"text": kinds.Text(), "x": kinds.Array((3,), "int64"), "label": kinds.Label()}
NUMBERS = {"x": COLUMNS["x"], "label": COLUMNS["label"]}
OWNER = Path(__file__).parents[2] / "support" / "owner"


class Texts(Source):
    """Texts and arrays in memory. Those in `bad` cannot be read; sample 5 has half of a surrogate pair."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self._bad = bad
        self._texts = texts.lines(N)
        self._texts[5] += " \ud800"

    def __len__(self) -> int:
        return N

    def read(self, index: int) -> Record:
        if index in self._bad:
            raise SampleError("lost")
        return {"text": self._texts[index], "x": np.full(3, index), "label": index}

    def label(self, index: int) -> int:
        return index

    def name(self, index: int) -> str:
        return f"sample {index}"


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(OWNER)
        plugins.load(["owner_code"])


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    path = texts.tokenizer(tmp_path_factory.mktemp("words") / "a.json")
    ops = [
        Tokenize(path), PluginOp("shaken", column="x", block=True), Truncate(9), PadTokens(9, count="n"),
        MaskTokens(1, 9, [0]), PluginOp("shaken", column="tokens", block=True),
    ]  # fmt: skip
    return Pipeline.from_ops(ops, columns=COLUMNS)


def stream_of(source: Source, quarantined: frozenset[int] = frozenset()) -> Stream:
    return Stream(source, make_order("full", N, 3), 3, quarantined)


def filled(pipeline: Pipeline, stream: Stream, start: int, cuts: Sequence[int], alone: bool = False) -> Any:
    """The rows and verdicts of some tasks."""
    lanes, bad, at = [OwnLane(pipeline, 160), OwnLane(pipeline, 97)], [], start
    for length in cuts:
        bad += fill(stream, [lane.lane for lane in lanes], at, length, nothing, alone=alone).bad
        at += length
    return bad, lanes[0].rows(start, at), lanes[1].rows(max(start, at - 97), at)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.integers(0, 200),
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.frozensets(st.integers(0, N - 1), max_size=4),
    st.frozensets(st.integers(0, N - 1), max_size=2),
)
def test_rows_do_not_depend_on_how_samples_are_grouped(
    pipeline: Pipeline, start: int, cuts: list[int], bad: frozenset[int], apart: frozenset[int]
) -> None:
    stream = stream_of(Texts(bad), apart)
    expected = filled(pipeline, stream, start, [sum(cuts)], alone=True)
    assert filled(pipeline, stream, start, cuts) == expected
    assert filled(pipeline, stream, start, [sum(cuts)]) == expected
    whys = {row.index: row.reason for row in expected[0]}
    assert "half of a surrogate pair" in whys.get(5, "half of a surrogate pair") or 5 in bad | apart


def test_a_function_gets_many_samples_but_after_a_death() -> None:
    pipeline = Pipeline.from_ops([PluginOp("shaken", column="x", block=True, least=8)], columns=NUMBERS)
    lane = OwnLane(pipeline, 32)
    assert fill(stream_of(Texts()), [lane.lane], 0, 8, nothing).bad == []
    with pytest.raises(Exception, match="op plug-in 'shaken' raised AssertionError"):
        fill(stream_of(Texts()), [lane.lane], 0, 8, nothing, alone=True)


def test_a_function_gets_values_of_its_own_and_as_they_are() -> None:
    """What it writes to is no other lane's, and no sample's dtype follows from the others of its block."""
    stage = stage_of(PluginOp("shaken", column="x", block=True), 1)
    one = np.arange(3)
    for other, why in ((np.arange(4), r"\(4,\)"), (one + 0.5, "float64")):
        kept, draws = other.copy(), [Draws(SampleKey(0, 0, index), 1) for index in range(2)]
        block: list[dict[str, Any]] = [{"x": one}, {"x": other}]
        with pytest.raises(plugins.PluginError, match=why):
            stage.make_block(block, {"x": kinds.Array((3,), "int64")}, draws)
        assert block[0]["x"].dtype == np.int64  # the other one is the one to blame
        assert one.tolist() == [0, 1, 2]
        assert other.tolist() == kept.tolist()


def test_a_function_that_gives_too_few_values_is_named() -> None:
    op = PluginOp("shaken", column="x", block=True, how="short")
    lane = OwnLane(Pipeline.from_ops([op], columns=NUMBERS), 32)
    with pytest.raises(Exception, match=r"got a block of 1 values and gives ndarray of shape \(0, 3\)"):
        fill(stream_of(Texts()), [lane.lane], 0, 8, nothing)


@pytest.mark.parametrize(("name", "is_block"), [("joint", False), ("joint_block", True)])
def test_several_columns_are_made_with_one_draw(name: str, is_block: bool) -> None:
    columns = {"text": kinds.Text(), "x": kinds.Array((3,), "int64"), "y": kinds.Array((3,), "int64")}
    made = {"x": columns["x"], "y": columns["y"], "length": kinds.Label(), "half": kinds.Array((1,))}
    op = PluginOp(name, column=list(columns), returns=made, block=is_block)
    pipeline = Pipeline.from_ops([op], columns=columns)

    class Pairs(Texts):
        def read(self, index: int) -> Record:
            return {"text": "t" * index, "x": np.arange(index, index + 3), "y": np.arange(3)}

    lane = OwnLane(pipeline, 32)
    assert fill(stream_of(Pairs()), [lane.lane], 0, N, nothing).bad == []
    turned = []
    for p in range(N):
        x, y, length, half, index = (lane.ring.row(name, p).tolist() for name in (*made, "index"))
        assert (length, half) == (index, [index / 2])
        assert [each - index for each in x] == y
        turned.append(y == [2, 1, 0])
    assert {*turned} == {True, False}


@pytest.mark.parametrize(
    ("how", "said"),
    [("misses", "op plug-in 'joint' declares a dict of x and gives a dict of $"), ("nothing", "and gives no dict")],
)
def test_columns_that_a_function_leaves_out_are_named(how: str, said: str) -> None:
    stage = stage_of(PluginOp("joint", column=["x"], how=how), 1)
    with pytest.raises(plugins.PluginError, match=said):
        stage.make({"x": np.arange(3)}, {"x": NUMBERS["x"]}, Draws(SampleKey(0, 0, 0), 1))


def test_blocks_of_several_columns_give_what_single_samples_give() -> None:
    names = ["x", "label"]
    one, block = (
        Pipeline.from_ops([PluginOp(name, column=names, block=name == "joint_block")], columns=NUMBERS)
        for name in ("joint", "joint_block")
    )
    stream = stream_of(Texts(frozenset({3})))
    assert filled(block, stream, 7, [9, 20]) == filled(one, stream, 7, [9, 20])
    stage = stage_of(PluginOp("joint_block", column=names, block=True, how="short"), 1)
    with pytest.raises(plugins.PluginError, match="'joint_block', x, got a block of 1 values and gives list of shape"):
        stage.make_block([{"x": np.arange(3), "label": 1}], NUMBERS, [Draws(SampleKey(0, 0, 0), 1)])


def test_blocks_are_for_columns_without_images() -> None:
    for columns, column, why in (
        (COLUMNS, None, "is for columns that are no images"),
        (images(), "label", "needs samples without images"),
        (images(), ["label"], "needs samples without images"),
    ):
        with pytest.raises(SpecError, match=f"block = True: {why}"):
            Pipeline.from_ops([PluginOp("shaken", column=column, block=True)], columns=columns)
    op = PluginOp("shaken", column="x", block=True)
    assert PluginOp.from_params({name: value for name, value in op.to_wire().items() if name != "op"}) == op
    assert "block" not in PluginOp("shaken").to_wire()
