"""COCO's JSON files: torchvision's samples in its order, and what is said of annotations that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Keypoints
from prepserver.pipeline.sources import Coco, source_from_wire
from prepserver.source import OutsideRootsError, Roots, SampleError, Source, SourceError, build_index, open_source
from prepserver.source import objects as objects_module
from prepserver.source.readers import coco as coco_module
from tests.support.detection import HEIGHT, WIDTH, annotation, coco_tree
from tests.support.oracle import torchvision


def opened(spec: Coco, tmp_path: Path, roots: Roots | None = None) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)


def changed(spec: Coco, **content: Any) -> Coco:
    """The same with other parts of its JSON file."""
    path = Path(spec.annotations)
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    return spec


def test_samples_are_those_of_torchvision_in_its_order(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    spec = coco_tree(tmp_path / "data", 9)
    datasets, v2 = torchvision("datasets"), torchvision("transforms.v2.functional")
    theirs, ours = datasets.CocoDetection(spec.root, spec.annotations), opened(spec, tmp_path)
    assert len(ours) == len(theirs) == 9
    assert theirs.ids != [image["id"] for image in json.loads(Path(spec.annotations).read_text())["images"]]
    labels = {number: label for label, number in enumerate(sorted(theirs.coco.cats))}
    assert ours.classes() == [theirs.coco.cats[number]["name"] for number in sorted(theirs.coco.cats)]
    total = 0
    for index, number in enumerate(theirs.ids):
        kept = [each for each in theirs._load_target(number) if not each["iscrowd"]]
        record = ours.read(index)
        boxes, size = record["boxes"]
        wanted = np.array([each["bbox"] for each in kept], np.float32).reshape(-1, 4)
        assert np.array_equal(boxes, v2.convert_bounding_box_format(torch.from_numpy(wanted), "XYWH", "XYXY").numpy())
        assert record["labels"].tolist() == [labels[each["category_id"]] for each in kept]
        assert record["image_id"] == number
        assert record["image"] == Path(spec.root, theirs.coco.imgs[number]["file_name"]).read_bytes()
        assert size == (theirs.coco.imgs[number]["height"], theirs.coco.imgs[number]["width"])
        total += len(kept)
    assert total > 9


def test_crowds_and_keypoints_are_columns_where_wanted(tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 3)
    annotations = [
        annotation(
            1, spec, 0, iscrowd=1, segmentation={"counts": [1, 2], "size": [3, 4]}, keypoints=[1, 2, 2, 3, 4, 1]
        ),
        annotation(2, spec, 0, [1, 1, 0, 0]),
    ]
    changed(spec, annotations=annotations)
    assert opened(spec, tmp_path).read(0)["boxes"][0].tolist() == [[1, 1, 1, 1]]
    full = Coco(spec.root, spec.annotations, crowd=True, keypoints=2, flip_pairs=[(0, 1)])
    record = opened(full, tmp_path).read(0)
    assert record["iscrowd"].tolist() == [1, 0]
    assert record["keypoints"].tolist() == [[[1, 2, 2], [3, 4, 1]], [[0, 0, 0], [0, 0, 0]]]
    assert list(full.columns) == ["image", "boxes", "labels", "iscrowd", "keypoints", "image_id"]
    assert source_from_wire(full.to_wire()) == full
    assert source_from_wire(json.loads(json.dumps(full.to_wire()))) == full
    persons = Coco(spec.root, spec.annotations, keypoints=17).columns["keypoints"]
    assert isinstance(persons, Keypoints)
    assert persons.pairs[0] == (1, 2)
    assert len(persons.pairs) == 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bbox": [0, 0, float("nan"), 1]}, "and must be 4 numbers"),
        ({"bbox": [0, 0, 1]}, "the bbox of annotation . is .*, and must be 4 numbers within 1e"),
        ({"bbox": [0, 0, 10**400, 1]}, "the bbox of annotation"),
        ({"bbox": [0, "0", 1, 1]}, "the bbox of annotation"),
        ({"bbox": None}, "the bbox of annotation .* is None"),
        ({"bbox": [0, 0, -1, 1]}, "bbox of negative size"),
        ({"category_id": 99}, "annotation 7 has the category 99, which the file does not list"),
        ({"category_id": [1]}, "category"),
        ({"keypoints": [1, 2]}, "must be 6 numbers"),
    ],
)
def test_an_annotation_that_cannot_be_spoils_its_image(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 3)
    annotations = [annotation(7, spec, 1, **change), annotation(8, spec, 2)]
    source = opened(Coco(changed(spec, annotations=annotations).root, spec.annotations, keypoints=2), tmp_path)
    with pytest.raises(SampleError, match=said):
        source.read(1)
    assert len(source.read(0)["labels"]) == 0
    assert len(source.read(2)["labels"]) == 1
    assert source.read(2)["image_id"] == 30


def test_a_side_that_is_none_spoils_its_image_alone(tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 4)
    images = [{"id": 10 * k, "file_name": f"{k}.jpg", "width": 9} for k in (1, 2, 3, 4)]
    images[1]["height"] = -3
    images[2]["height"] = 8.0
    images[3]["height"] = float("nan")
    for k in (1, 3):
        Path(spec.root, f"{k}.jpg").write_bytes(b"x")
    source = opened(changed(spec, images=images, annotations=[]), tmp_path)
    assert source.read(2)["boxes"][1] == (8, 9)
    assert source.read(0)["boxes"].shape == (0, 4)  # without a height: on whatever the image is
    for index in (1, 3):
        with pytest.raises(SampleError, match="its height is"):
            source.read(index)


def test_a_size_is_a_column_where_wanted(tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 2)
    sized = Coco(spec.root, spec.annotations, sizes=True)
    assert list(sized.columns)[-2:] == ["image_id", "orig_size"]
    assert source_from_wire(sized.to_wire()) == sized != spec
    assert Coco(spec.root, spec.annotations, sizes=False).to_wire() == spec.to_wire()
    assert "sizes" not in spec.to_wire()  # as in 0.2: checkpoints hold its digest
    found = opened(sized, tmp_path).read(1)["orig_size"]
    assert (found.tolist(), found.dtype) == ([HEIGHT, WIDTH], np.int32)
    images = json.loads(Path(spec.annotations).read_text())["images"]
    del images[0]["height"]  # of the second image by its id
    source = opened(changed(sized, images=images), tmp_path)
    assert source.read(0)["orig_size"].tolist() == [HEIGHT, WIDTH]
    with pytest.raises(SampleError, match="it has no height and width, which sizes need"):
        source.read(1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"images": []}, "lists no images"),
        ({"images": None}, "has no list of images"),
        ({"images": [{"id": "a"}]}, "among the images, the id a must be a whole number"),
        ({"images": [{"id": [1]}]}, "must be a whole number"),
        ({"images": [{"id": True, "file_name": "x"}]}, "must be a whole number"),
        ({"images": [{"id": 1, "file_name": "x"}] * 2}, "the id 1 occurs twice"),
        ({"images": [{"id": 1}], "annotations": []}, "the file_name of image 1 is None, and must be"),
        ({"images": [{"id": 1, "file_name": "a/"}], "annotations": []}, "the file_name of image 1 is a/"),
        ({"images": [{"id": 1, "file_name": "\ud800"}], "annotations": []}, "is not valid text"),
        ({"categories": [{"name": "cat"}]}, "among the categories, the id None"),
        ({"annotations": [{"id": 3, "image_id": 5}]}, "annotation 3 belongs to image 5, which the file does not list"),
        ({"annotations": [{"id": 3}]}, r"annotations\[0\] has no image_id"),
        ({"annotations": {}}, "has no list of annotations"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    spec = changed(coco_tree(tmp_path / "data", 2), **content)
    with pytest.raises(SourceError, match=said):
        build_index(spec, tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "not in COCO's format"),
        (b"\xff\xfe\x00", "not JSON"),
    ],
)
def test_a_file_that_is_no_json_is_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 1)
    Path(spec.annotations).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SourceError, match=said):
        build_index(spec, tmp_path / "cache")


def test_a_file_that_is_too_large_missing_or_outside_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = coco_tree(tmp_path / "data", 2)
    roots = Roots([str(tmp_path / "data")])
    assert len(opened(spec, tmp_path, roots)) == 2
    with pytest.raises(OutsideRootsError, match="the annotations of Coco"):
        build_index(Coco(spec.root, tmp_path / "other.json"), tmp_path / "cache", roots=roots)
    with pytest.raises(SourceError, match=r"the annotations .*other.json does not exist"):
        build_index(Coco(spec.root, tmp_path / "other.json"), tmp_path / "cache")
    changed(spec, images=[{"id": 1, "file_name": "../../x.jpg"}], annotations=[])
    with pytest.raises(OutsideRootsError):
        build_index(spec, tmp_path / "cache", roots=roots)
    monkeypatch.setattr(coco_module, "MOST_BYTES", 10)
    with pytest.raises(SourceError, match="more than the limit of 10"):
        build_index(spec, tmp_path / "new")


def test_a_wrong_root_and_a_missing_image_are_named_in_full(tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 3)
    wrong = Coco(tmp_path / "data", spec.annotations)
    with pytest.raises(SourceError, match=rf"such as {wrong.root}/0.jpg: root='{wrong.root}' must be the folder"):
        build_index(wrong, tmp_path / "cache")
    Path(spec.root, "0.jpg").unlink()
    with pytest.raises(SampleError, match=rf"the file is gone, or a link to nothing: {spec.root}/0.jpg"):
        opened(spec, tmp_path).read(0)


def test_too_many_broken_images_are_a_broken_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = coco_tree(tmp_path / "data", 3)
    changed(spec, annotations=[annotation(k, spec, k, category_id=99) for k in range(3)])
    with pytest.raises(
        SourceError, match=r"the annotations of all images are unusable. The first one: annotation 0 has"
    ):
        build_index(spec, tmp_path / "cache")
    monkeypatch.setattr(objects_module, "MOST_FAULTS", 1)
    changed(spec, annotations=[annotation(k, spec, k, category_id=99) for k in (1, 2)])
    with pytest.raises(
        SourceError, match=r"more than 1 images have annotations that cannot be used. .*image 1 in order"
    ):
        build_index(spec, tmp_path / "cache")


def test_other_boxes_are_another_content(tmp_path: Path) -> None:
    spec = coco_tree(tmp_path / "data", 3)
    first = build_index(spec, tmp_path / "cache")
    os.utime(spec.annotations, (1e9, 1e9))
    again = build_index(spec, tmp_path / "cache")
    assert again.content_digest == first.content_digest
    assert build_index(spec, tmp_path / "cache").path == again.path
    other = build_index(changed(spec, annotations=[annotation(1, spec, 0)]), tmp_path / "cache")
    assert other.content_digest != first.content_digest
    assert len(open_source(spec, first.path).read(0)["labels"]) == 0  # a stream that began on it keeps it
    assert len(open_source(spec, other.path).read(0)["labels"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keypoints": 0}, "between 1 and 1000"),
        ({"keypoints": 2, "flip_pairs": [(0, 2)]}, "between 0 and 1"),
        ({"keypoints": 2, "flip_pairs": 3}, "a list of 2 values"),
        ({"flip_pairs": [(0, 1)]}, "needs keypoints"),
        ({"crowd": 1}, "true or false"),
        ({"sizes": 1}, "true or false"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Coco("/data", "/data.json", **arguments)
