"""A remote worker's actor, in this process: its blocks, and what it refuses."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepserver.engine.actor import OtherBuildError, RowActor
from prepserver.engine.block import Arrays, copy_into, split
from prepserver.engine.build import build, differences
from prepserver.inline import InlineMaker
from prepserver.memory.ring import Ring
from prepserver.memory.segment import create_segment
from prepserver.pipeline.sources import ImageFolder
from prepserver.protocol import work
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.layout import RingLayout, ring_fields
from tests.support.tiny_images import index_of, photo_tree, tiny_pipeline

COUNT = 40
PIPELINES = (tiny_pipeline(16), tiny_pipeline(8, views=2))


Told = Callable[[ImageFolder, Path], RowActor]


@pytest.fixture
def told() -> Iterator[Told]:
    """Makes actors that know stream 1 and its lanes 1 and 2."""
    with contextlib.ExitStack() as at_end:

        def make(tree: ImageFolder, cache: Path) -> RowActor:
            made = RowActor(build(), (), {}, (), 1.0)
            at_end.callback(made.close)
            _tell(made, tree, cache)
            return made

        yield make


def _tell(made: RowActor, tree: ImageFolder, cache: Path) -> None:
    info = index_of(tree, cache)
    add = work.AddStream(1, tree.to_wire(), str(info.path), "full", 3, places=list(info.places))
    made.tell(encode(add), np.fromfile(info.path, np.uint8))
    for lane, pipeline in enumerate(PIPELINES, 1):
        layout = RingLayout(1, ring_fields(pipeline.fields)).to_wire()
        made.tell(encode(work.AddLane(lane, 1, pipeline.to_wire(), layout)))


def answer(data: bytes) -> Any:
    return decode(data, work.FROM_WORKER)


def test_a_block_holds_the_rows_of_all_lanes(tmp_path: Path, told: Told) -> None:
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    (tmp_path / "index").rename(tmp_path / "elsewhere")  # the daemon's listing is not on the actor's machine
    for position, count in ((COUNT - 5, 9), (3, 2)):
        data, block, unreadable = made.fill(encode(work.Fill(7, 1, [1, 2], position, count)))
        assert (answer(data).task, answer(data).bad, unreadable) == (7, [], "")
        assert block is not None
        lanes = [ring_fields(pipeline.fields) for pipeline in PIPELINES]
        for pipeline, arrays in zip(PIPELINES, split(block, lanes, count), strict=True):
            inline = InlineMaker(tree, pipeline, "full", 3, lambda _: None)
            expected = {name: np.zeros_like(rows) for name, rows in arrays.items()}
            inline.fill(position, position + count, expected)
            for name, rows in arrays.items():
                # what is inline puts position p into row p % count
                assert np.array_equal(rows, np.roll(expected[name], -(position % count), 0)), name


def test_rows_are_copied_to_where_they_wrap() -> None:
    fields = ring_fields((("image", "uint8", (3,)), ("label", "int64", ())))
    layout = RingLayout(10, fields)
    ring = Ring(create_segment("test", layout.nbytes), layout)
    rows: Arrays = {"image": np.arange(18, dtype=np.uint8).reshape(6, 3), "label": np.arange(6)}
    copy_into(ring, 27, rows)
    for k in range(6):
        assert ring.row("label", 27 + k) == k
        assert ring.row("image", 27 + k).tolist() == rows["image"][k].tolist()


def test_a_place_that_it_cannot_read_is_named_with_its_machine(tmp_path: Path, told: Told) -> None:
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    made._host = "node-7"
    shutil.rmtree(tree.root)
    data, _, unreadable = made.fill(encode(work.Fill(7, 1, [1], 0, 2)))
    assert "node-7" in unreadable
    assert f"cannot read {tree.root}" in unreadable
    Path(tree.root).mkdir()  # a file system that is not mounted
    data, _, unreadable = made.fill(encode(work.Fill(8, 1, [1], 0, 2)))
    assert "node-7" in unreadable
    assert "reads nothing of a dataset" in unreadable
    assert len(answer(data).bad) == 2


def test_bad_samples_are_not_a_bad_machine(tmp_path: Path, told: Told) -> None:
    bad = {0, COUNT // 2, COUNT - 1}  # also those that tell whether a machine reads anything
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    for index in bad:
        sorted(Path(tree.root).rglob("*.jpg"))[index].write_bytes(b"")
    data, block, unreadable = made.fill(encode(work.Fill(7, 1, [1], 0, COUNT)))
    assert {row[1] for row in answer(data).bad} == bad
    assert unreadable == ""
    assert block is not None


def test_a_task_of_unknown_lanes_is_no_answer(tmp_path: Path, told: Told) -> None:
    with pytest.raises(KeyError):
        told(photo_tree(tmp_path / "photos", 3), tmp_path / "index").fill(encode(work.Fill(7, 1, [9], 0, 1)))


def test_the_samples_of_a_task_are_named_before_it_runs(tmp_path: Path, told: Told) -> None:
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    indices = made.indices(1, 10, 4)
    _, block, _ = made.fill(encode(work.Fill(7, 1, [1], 10, 4)))
    assert block is not None
    (arrays,) = split(block, [ring_fields(PIPELINES[0].fields)], 4)
    assert arrays["index"].tolist() == indices


def test_another_build_makes_no_rows() -> None:
    other = {**build(), "numpy": "1.0", "prepserver": "abc"}
    with pytest.raises(OtherBuildError, match=r"prepserver is [0-9a-f]+ there and abc here; numpy is .* and 1\.0 here"):
        RowActor(other, (), {}, (), 1.0)
    with pytest.raises(OtherBuildError, match="the code of op plug-in 'mine' is None there and 77 here"):
        RowActor(build(), (), {("op", "mine"): "77"}, (), 1.0)


def test_an_optional_library_may_be_missing() -> None:
    here = {"numpy": "2.0", "pyarrow": "15"}
    assert differences(here, {"numpy": "2.0", "pyarrow": ""}) == []
    assert differences(here, {"numpy": "2.0"}) == []
    assert differences({**here, "pyarrow": ""}, here) == []
    assert differences(here, {"numpy": "", "pyarrow": "16"}) == [
        "numpy is missing there and 2.0 here", "pyarrow is 16 there and 15 here",
    ]  # fmt: skip
