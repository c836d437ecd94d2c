"""What follows the images of a chunk is made after all of them: rows, verdicts and marks are those of one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prepserver.memory.ring import ArrayRows
from prepserver.order import make_order
from prepserver.pipeline.kinds import Boxes, Image, PerBox
from prepserver.pipeline.ops import Op, PadBoxes, RandomHorizontalFlip, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.source import Record, SampleError, Source
from prepserver.worker.fill import FillResult, fill
from prepserver.worker.streams import Lane, Stream
from tests.support.photos import jpeg

N = 9
COLUMNS: Columns = {"image": Image(), "boxes": Boxes(), "labels": PerBox()}
NO_IMAGE, NO_BOX, NO_FILE = 3, 4, 7
Marks = list[tuple[int, int]]


class Scenes(Source):
    """Photos with boxes: one cannot be decoded, the boxes of one cannot be, and one is not there."""

    def __len__(self) -> int:
        return N

    def name(self, index: int) -> str:
        return f"{index}.jpg"

    def read(self, index: int) -> Record:
        if index == NO_FILE:
            raise SampleError("the file is gone")
        image = jpeg(90 + index, 120, "420")
        boxes = np.array([[10, 5, 30 + index, 60], [0, 0, 119, 89]][: index % 3], np.float32).reshape(-1, 4)
        if index == NO_BOX:
            boxes = boxes[:, ::-1]
        return {
            "image": image[:300] if index == NO_IMAGE else image,
            "boxes": boxes,
            "labels": np.arange(len(boxes)) + index,
        }


def filled(ops: list[Op], views: int = 1, alone: bool = False) -> tuple[dict[str, Any], FillResult, Marks]:
    pipeline = Pipeline.from_ops([*ops, PadBoxes(3)], views, COLUMNS)
    arrays = {field.name: np.full((N, *field.shape), 99, field.dtype) for field in pipeline.fields}
    marks: Marks = []
    stream = Stream(Scenes(), make_order("none", N, 0), 3)
    target = Lane.of(pipeline, ArrayRows(arrays, N))
    result = fill(stream, [target], 0, N, lambda *mark: marks.append(mark), alone=alone)
    return arrays, result, marks


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("ops", [[RandomResizedCrop(32), RandomHorizontalFlip()], [Resize((40, 30))]])
def test_boxes_made_in_a_row_are_those_made_one_by_one(ops: list[Op], views: int) -> None:
    arrays, result, marks = filled(ops, views)
    wanted, one_by_one, _ = filled(ops, views, alone=True)
    assert {name: each.tobytes() for name, each in arrays.items()} == {
        name: each.tobytes() for name, each in wanted.items()
    }
    assert arrays["index"].tolist() == [0, 1, 2, 5, 5, 5, 6, 8, 8]
    assert result.bad == one_by_one.bad
    assert [bad.position for bad in result.bad] == [NO_IMAGE, NO_BOX, NO_FILE]
    assert "ends before it begins" in result.bad[1].reason
    # The boxes of each sample are made after the last image, with the sample in hand named again.
    last_image = marks.index((N - 1, N - 1))
    finished = [(0, 0), (1, 1), (2, 2), (4, NO_BOX), (5, 5), (6, 6), (8, 8)]
    assert marks[last_image + 1 :] == [*finished, (4, NO_BOX), (4, 5)]
