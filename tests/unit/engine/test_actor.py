"""A remote worker's actor, in this process, at the other end of its line: its rows, and what it refuses."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepserver import plugins
from prepserver.engine.actor import OtherBuildError, RowActor
from prepserver.engine.block import runs
from prepserver.engine.build import build, differences
from prepserver.engine.line import IN_RAY, TcpLine
from prepserver.inline import InlineMaker
from prepserver.memory.ring import Ring
from prepserver.memory.segment import create_segment
from prepserver.pipeline.sources import ImageFolder
from prepserver.plugins import PluginError
from prepserver.protocol import work
from prepserver.protocol.layout import RingLayout, ring_fields
from prepserver.protocol.places import ONLY_ROWS_VARIABLE
from tests.support.tiny_images import index_of, photo_tree, tiny_pipeline

COUNT = 40
ROWS = 16
PIPELINES = (tiny_pipeline(16), tiny_pipeline(8, views=2))
HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor's process does nothing else, and this one does."""
    monkeypatch.setattr(plugins, "keeps_random_state", True)
    monkeypatch.setenv(ONLY_ROWS_VARIABLE, "1")  # and unset afterwards


class Told:
    """An actor that knows stream 1 and its lanes 1 and 2, as the bridge sees it."""

    def __init__(self, tree: ImageFolder, cache: Path) -> None:
        self.actor = RowActor(build(), (), {}, (), 1.0, HERE)
        *_, address, token = self.actor.about()
        self._serves = threading.Thread(target=self._serve)
        self._serves.start()
        self.line = TcpLine.to(address, token)
        self.error: Exception | None = None
        info = index_of(tree, cache)
        self.line.send(work.AddStream(1, tree.to_wire(), IN_RAY, "full", 3, places=list(info.places)))
        self.actor.keep(1, np.fromfile(info.path, np.uint8))
        self.rings = {}
        for lane, pipeline in enumerate(PIPELINES, 1):
            layout = RingLayout(ROWS, ring_fields(pipeline.fields))
            self.rings[lane] = Ring(create_segment("test", layout.nbytes), layout)
            self.line.send(work.AddLane(lane, 1, pipeline.to_wire(), layout.to_wire()))

    def _serve(self) -> None:
        try:
            self.actor.serve()
        except Exception as e:  # noqa: BLE001 - a test looks at it
            self.error = e

    def fill(self, task: work.Fill) -> Any:
        self.line.send(task)
        return self.answer(task)

    def answer(self, task: work.Fill) -> Any:
        """The next message; if it is the answer to `task`, its rows are in the rings then."""
        answer = self.line.receive(work.FROM_ACTOR)
        if isinstance(answer, work.Filled):
            for lane in task.lanes:
                for into in runs(self.rings[lane], task.position, task.count):
                    self.line.receive_rows(into)
        return answer

    def ended(self) -> Exception | None:
        """Waits for its end; returns the error of which it ended."""
        self._serves.join()
        return self.error


@pytest.fixture
def told() -> Iterator[Callable[[ImageFolder, Path], Told]]:
    with contextlib.ExitStack() as at_end:

        def make(tree: ImageFolder, cache: Path) -> Told:
            made = Told(tree, cache)
            at_end.callback(made.ended)
            at_end.callback(made.line.close)
            return made

        yield make


Make = Callable[[ImageFolder, Path], Told]


def test_rows_of_all_lanes_come_to_where_they_belong(tmp_path: Path, told: Make) -> None:
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    tasks = [work.Fill(number, 1, [1, 2], 9 * number - 1, 9) for number in range(1, 9)]
    for task in tasks:  # all at once: rows are made while others are sent
        made.line.send(task)
    for task in tasks:  # of which some wrap
        answer = made.answer(task)
        assert (answer.task, answer.bad) == (task.task, [])
        for pipeline, ring in zip(PIPELINES, made.rings.values(), strict=True):
            inline = InlineMaker(tree, pipeline, "full", 3, lambda _: None)
            arrays = {field.name: ring.run(field.name, 0, ROWS) for field in ring.layout.fields}
            expected = {name: array.copy() for name, array in arrays.items()}
            inline.fill(task.position, task.position + task.count, expected)
            for name, array in arrays.items():
                assert np.array_equal(array, expected[name]), name


def test_whoever_has_no_token_is_sent_away(tmp_path: Path) -> None:
    made = RowActor(build(), (), {}, (), 1.0, HERE)
    *_, address, token = made.about()
    serves = threading.Thread(target=made.serve)
    serves.start()
    with contextlib.closing(TcpLine.to(address, bytes(len(token)))) as other, pytest.raises(ConnectionError):
        other.receive(work.FROM_ACTOR)
    TcpLine.to(address, token).close()
    serves.join()


def test_a_place_that_it_cannot_read_is_named_with_its_machine(tmp_path: Path, told: Make) -> None:
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    made.actor._host = "node-7"
    shutil.rmtree(tree.root)
    answer = made.fill(work.Fill(7, 1, [1], 0, 2))
    assert answer.elsewhere
    assert f"node-7, a remote worker's machine, cannot read {tree.root}" in answer.reason
    Path(tree.root).mkdir()  # a file system that is not mounted
    answer = made.fill(work.Fill(8, 1, [1], 0, 2))
    assert answer.elsewhere
    assert "node-7, a remote worker's machine, cannot read a dataset's samples" in answer.reason
    photo_tree(Path(tree.root), COUNT)
    assert made.fill(work.Fill(9, 1, [1], 0, 2)).bad == []


def test_bad_samples_are_not_a_bad_machine(tmp_path: Path, told: Make) -> None:
    bad = {0, COUNT // 2, COUNT - 1}  # also those that tell whether a machine reads anything
    tree = photo_tree(tmp_path / "photos", COUNT)
    made = told(tree, tmp_path / "index")
    for index in bad:
        sorted(Path(tree.root).rglob("*.jpg"))[index].write_bytes(b"")
    answers = [made.fill(work.Fill(7, 1, [1], first, 10)) for first in range(0, COUNT, 10)]
    assert {row[1] for answer in answers for row in answer.bad} == bad


def test_a_source_that_fails_at_every_sample_ends_no_actor(
    tmp_path: Path, told: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its death would be blamed on the sample that was tried last."""
    made = told(photo_tree(tmp_path / "photos", COUNT), tmp_path / "index")
    assert made.fill(work.Fill(7, 1, [1], 0, 2)).bad == []

    def read(*_: Any) -> Any:
        raise PluginError("a bug")

    opened: Any = made.actor._worker.streams[1].opened
    monkeypatch.setattr(type(opened.source), "read", read)
    answer = made.fill(work.Fill(8, 1, [1], 2, 2))
    assert (answer.lane, answer.elsewhere) == (1, False)
    assert "a bug" in answer.reason


def test_a_task_of_unknown_lanes_ends_it(tmp_path: Path, told: Make) -> None:
    made = told(photo_tree(tmp_path / "photos", 3), tmp_path / "index")
    made.line.send(work.Fill(7, 1, [9], 0, 1))
    assert isinstance(made.ended(), KeyError)


def test_samples_of_a_suspect_task_are_named_before_they_run(tmp_path: Path, told: Make) -> None:
    made = told(photo_tree(tmp_path / "photos", COUNT), tmp_path / "index")
    task = work.Fill(7, 1, [1, 2], 0, 4, alone=True)
    made.line.send(task)
    said = []
    while isinstance(answer := made.answer(task), work.At):
        said.append(answer)
    indices = made.rings[1].run("index", 0, 4).tolist()
    assert list(dict.fromkeys((at.position, at.index) for at in said)) == list(enumerate(indices))
    assert {at.lane for at in said} == {-1, 1, 2}


def test_another_build_makes_no_rows() -> None:
    other = {**build(), "numpy": "1.0", "prepserver": "abc"}
    with pytest.raises(OtherBuildError, match=r"prepserver is [0-9a-f]+ there and abc here; numpy is .* and 1\.0 here"):
        RowActor(other, (), {}, (), 1.0, HERE)
    with pytest.raises(OtherBuildError, match="the code of op plug-in 'mine' is None there and 77 here"):
        RowActor(build(), (), {("op", "mine"): "77"}, (), 1.0, HERE)


def test_an_optional_library_may_be_missing() -> None:
    here = {"numpy": "2.0", "pyarrow": "15"}
    assert differences(here, {"numpy": "2.0", "pyarrow": ""}) == []
    assert differences(here, {"numpy": "2.0"}) == []
    assert differences({**here, "pyarrow": ""}, here) == []
    assert differences(here, {"numpy": "", "pyarrow": "16"}) == [
        "numpy is missing there and 2.0 here", "pyarrow is 16 there and 15 here",
    ]  # fmt: skip
