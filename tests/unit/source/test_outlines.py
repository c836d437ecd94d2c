"""Masks of instances from COCO's outlines: pycocotools' pixels, the smallest object on top."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepserver.pipeline.sources import Coco, source_from_wire
from prepserver.source import Source, SourceError, build_index, open_source
from tests.support.detection import HEIGHT, WIDTH, annotation, coco_tree

SIZE = [HEIGHT, WIDTH]
BIG, SMALL = [2, 2, 40, 2.5, 41.5, 30, 3, 33], [10, 10, 20, 10, 20, 18.5, 10, 20]
AWAY = [1e9, 1, 2, 2, 3, 3]


def outlined(root: Path, *outlines: Any, crowd: bool = False, width: int = WIDTH) -> Coco:
    """One image with these objects; the last one of four is a crowd."""
    spec = coco_tree(root, 1)
    path = Path(spec.annotations)
    content = json.loads(path.read_text())
    content["images"][0]["width"] = width
    content["annotations"] = [
        annotation(n, spec, 0, segmentation=each, iscrowd=int(n == 3)) for n, each in enumerate(outlines)
    ]
    path.write_text(json.dumps(content))
    return Coco(spec.root, spec.annotations, crowd, masks=True)


def opened(spec: Coco, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


def test_masks_have_the_pixels_of_pycocotools(tmp_path: Path) -> None:
    library = pytest.importorskip("pycocotools.mask")
    text = library.merge(library.frPyObjects([SMALL], *SIZE))["counts"].decode()
    runs = {"size": SIZE, "counts": [5, 20, HEIGHT * WIDTH - 25]}
    for crowd in (False, True):
        outlines = [[SMALL], [BIG, [50, 30, 54, 30, 54, 36]], [], runs, {"size": SIZE, "counts": text}]
        spec = outlined(tmp_path / str(crowd), *outlines, crowd=crowd)
        assert source_from_wire(spec.to_wire()) == spec
        record = opened(spec, tmp_path).read(0)
        wanted = np.zeros(SIZE, np.uint8)
        for polygons, number in ((outlines[1], 2), ([SMALL], 5 if crowd else 4)):
            pixels = library.decode(library.merge(library.frPyObjects(polygons, *SIZE)))
            wanted[pixels.astype(bool)] = number
        if crowd:
            wanted.T.flat[5:25] = 4  # runs go down columns
        assert np.array_equal(record["mask"], wanted)
        # The first object lies under its double, and the third one has no outline.
        assert record["instances"].tolist() == ([0, 2, 0, 4, 5] if crowd else [0, 2, 0, 4])
        assert len(record["boxes"][0]) == len(record["labels"]) == len(record["instances"])


@pytest.mark.parametrize(
    ("outline", "said"),
    [
        ("polygon", "is neither a list of polygons nor run lengths on 40x56 pixels"),
        ([1, 2, 3, 4, 5, 6], "a polygon that is not a list of three or more points"),
        ([[1, 2, 3, 4, 5]], "a polygon that is not a list of three or more points"),
        ([[1, 2, 3, 4, 5, None]], "a polygon that is not a list of three or more points"),
        ([[1, 2, 3, 4, 5, 10**400]], "a polygon that is not a list of three or more points"),
        ([AWAY], "a point farther than 112 pixels away"),
        ({"size": [40, 40], "counts": [1600]}, "nor run lengths on 40x56 pixels"),
        ({"size": SIZE, "counts": [5, -1]}, "run lengths that do not make 40x56 pixels"),
        ({"size": SIZE, "counts": [5, 2240]}, "run lengths that do not make 40x56 pixels"),
        ({"size": SIZE, "counts": [5, 20]}, "run lengths that do not make 40x56 pixels"),
        ({"size": SIZE, "counts": "9999"}, "run lengths that do not make 40x56 pixels"),
        ({"size": SIZE, "counts": 9 * "9oooo0"}, "run lengths that do not make 40x56 pixels"),
        ({"size": SIZE, "counts": 7}, "neither a list nor COCO's text for one"),
        (
            {"size": SIZE, "counts": 78 * "1" + "o"},
            "neither a list nor COCO's text for one",
        ),  # it wrote past its memory
    ],
)
def test_an_outline_that_cannot_be_spoils_its_image(outline: Any, said: str, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    spec = outlined(tmp_path / "data", [BIG], outline)
    with pytest.raises(SourceError, match=f"the segmentation of annotation 1 .*{said}"):  # it is the only image
        build_index(spec, tmp_path / "cache")


def test_an_image_without_a_size_has_no_mask(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    for width, said in ((0, "has no height and width, which masks need"), (10**8, "more than")):
        with pytest.raises(SourceError, match=said):
            build_index(outlined(tmp_path / said[:3], [BIG], width=width), tmp_path / "cache")


def test_an_image_without_objects_needs_a_size_for_its_mask_too(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    for width, said in ((0, "it has no height and width, which masks need"), (10**8, "pixels, more than the limit")):
        with pytest.raises(SourceError, match=said):  # it is the only image
            build_index(outlined(tmp_path / said[:5], width=width), tmp_path / "cache")


def test_another_outline_is_another_content(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    found = [
        build_index(outlined(tmp_path / f"{k}", [each]), tmp_path / "cache") for k, each in enumerate((BIG, SMALL))
    ]
    assert found[0].content_digest != found[1].content_digest


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = outlined(tmp_path / "data", [BIG])
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    with pytest.raises(SourceError, match=r"pip install 'prepserver\[coco\]'"):
        build_index(spec, tmp_path / "cache")
