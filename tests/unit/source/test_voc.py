"""PASCAL VOC's folders: torchvision's samples in its order, and XML files from strangers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import Voc, source_from_wire
from prepserver.source import OutsideRootsError, Roots, SampleError, Source, SourceError, build_index, open_source
from tests.support.detection import HEIGHT, WIDTH, voc_object, voc_tree, voc_xml
from tests.support.oracle import torchvision


def opened(spec: Voc, tmp_path: Path, roots: Roots | None = None) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)


def test_samples_are_those_of_torchvision_in_its_order(tmp_path: Path) -> None:
    datasets, wrapper = torchvision("datasets"), torchvision("tv_tensors._dataset_wrapper")
    spec = voc_tree(tmp_path / "VOCdevkit/VOC2012", 7)
    theirs = datasets.VOCDetection(str(tmp_path), year="2012", image_set="train")
    ours = opened(Voc(spec.root, "train", difficult=True), tmp_path)
    assert len(ours) == len(theirs) == 7
    seen = 0
    for index in range(7):
        record, target = ours.read(index), theirs[index][1]["annotation"]
        given = target.get("object", [])
        boxes, size = record["boxes"]
        assert boxes.tolist() == [[int(each["bndbox"][n]) for n in ("xmin", "ymin", "xmax", "ymax")] for each in given]
        # torchvision counts classes from 1, because 0 is its background.
        wanted = [wrapper.VOC_DETECTION_CATEGORY_TO_IDX[each["name"]] - 1 for each in given]
        assert record["labels"].tolist() == wanted
        assert record["difficult"].tolist() == [int(each["difficult"]) for each in given]
        assert size == (HEIGHT, WIDTH)
        assert record["image"] == Path(theirs.images[index]).read_bytes()
        seen += len(given)
    assert seen > 4
    assert ours.classes() == wrapper.VOC_DETECTION_CATEGORIES[1:]


def test_difficult_boxes_are_left_out_by_default(tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "data", 3)
    assert opened(spec, tmp_path).read(0)["labels"].tolist() == [14]  # a person; the cat is difficult
    assert list(spec.columns) == ["image", "boxes", "labels"]
    assert source_from_wire(spec.to_wire()) == spec


def test_masks_come_with_the_list_of_segmentation(tmp_path: Path) -> None:
    datasets = torchvision("datasets")
    spec = voc_tree(tmp_path / "VOCdevkit/VOC2012", 3)
    (lists, pngs) = (Path(spec.root, name) for name in ("ImageSets/Segmentation", "SegmentationClass"))
    lists.mkdir()
    pngs.mkdir()
    (lists / "val.txt").write_text("1\n0\n")
    for name in "01":
        Picture.fromarray(np.full((HEIGHT, WIDTH), int(name), np.uint8)).save(pngs / f"{name}.png")
    masked = Voc(spec.root, "val", masks=True)
    assert list(masked.columns) == ["image", "mask", "boxes", "labels"]
    theirs, ours = datasets.VOCSegmentation(str(tmp_path), year="2012", image_set="val"), opened(masked, tmp_path)
    assert len(ours) == len(theirs) == 2
    for index in range(2):
        assert ours.read(index)["mask"] == Path(theirs.masks[index]).read_bytes()
        assert ours.read(index)["image"] == Path(theirs.images[index]).read_bytes()
        assert len(ours.read(index)["labels"]) == 1 - index
    (pngs / "1.png").unlink()
    with pytest.raises(SampleError, match=r"its mask SegmentationClass/1.png: the file is gone"):
        ours.read(0)
    (lists / "val.txt").write_text("../../../x\n")
    with pytest.raises(OutsideRootsError):
        build_index(masked, tmp_path / "cache", roots=Roots([spec.root]))


def test_classes_of_ones_own_and_sizes_that_are_unknown(tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "data", 1)
    text = voc_xml(voc_object("bolt", 20.5, 3, 30, 4), voc_object("nut", 9, 8, 7, 6), height=0)
    Path(spec.root, "Annotations/0.xml").write_text(text)
    own = Voc(spec.root, "train", classes=["nut", "bolt"])
    source = opened(own, tmp_path)
    assert source.classes() == ["nut", "bolt"]
    assert source.read(0)["boxes"].tolist() == [[3, 4, 20.5, 30], [8, 6, 9, 7]]
    assert source.read(0)["labels"].tolist() == [1, 0]
    assert source_from_wire(own.to_wire()) == own
    with pytest.raises(SourceError, match=r"an object has the unknown class 'bolt'; pass all classes, Voc\(classes"):
        build_index(spec, tmp_path / "cache")


ENTITY = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd"> <!ENTITY y "&x;&x;">]>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTITY + voc_xml(voc_object("&y;", 2, 1, 2, 1)), "has a DOCTYPE, which is refused"),
        ("<annotation>", "not XML: no element found"),
        ("", "the file is empty"),
        ('<?xml version="1.0" encoding="zlib"?><annotation/>', "not XML: 'zlib' is not a text encoding"),
        (voc_xml(voc_object("emu" * 1000, 2, 1, 2, 1)), "class '(emu){100,160}em?u?$"),
        (voc_xml(voc_object("cat", float("nan"), 1, 2, 1)), "class 'cat' has the box"),
        (voc_xml(voc_object("cat", 0, 1, 2, 1)), "class 'cat' has the box"),
        (voc_xml("<object><name>cat</name></object>"), "class 'cat' has the box"),
        (voc_xml(voc_object("cat", 1, 1, 1, 1).replace("<xmin>1<", "<xmin>one<")), "could not convert"),
        (voc_xml(voc_object("emu", 2, 1, 2, 1)), "class 'emu'"),
        (voc_xml(height=-1), "its height is -1"),
        (None, "the file is gone"),
    ],
)
def test_an_xml_file_that_cannot_be_spoils_its_image(text: str | None, said: str, tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "data", 3)
    path = Path(spec.root, "Annotations/1.xml")
    path.unlink() if text is None else path.write_text(text)
    source = opened(spec, tmp_path)
    with pytest.raises(SampleError, match=rf"its annotations, .*/1.xml: .*{said}"):
        source.read(1)
    assert len(source.read(0)["labels"]) == 1
    assert len(source.read(2)["labels"]) == 0


def test_deep_xml_files_are_no_danger(tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "data", 1)
    Path(spec.root, "Annotations/0.xml").write_text("<a>" * 20_000 + "</a>" * 20_000)
    assert len(opened(spec, tmp_path).read(0)["labels"]) == 0


def test_an_xml_file_that_changes_is_noticed(tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "data", 3)
    files = [*Path(spec.root, "Annotations").iterdir(), Path(spec.root, "ImageSets/Main/train.txt")]
    for path in files:
        os.utime(path, (1e9, 1e9))
    first = build_index(spec, tmp_path / "cache")
    assert build_index(spec, tmp_path / "cache").path == first.path
    Path(spec.root, "Annotations/2.xml").write_text(voc_xml())
    changed = build_index(spec, tmp_path / "cache")
    assert changed.content_digest != first.content_digest
    Path(spec.root, "ImageSets/Main/train.txt").write_text("2\n")
    assert build_index(spec, tmp_path / "cache").samples == 1


def test_the_root_of_torchvision_is_told_where_the_lists_are(tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "VOCdevkit/VOC2012", 1)
    with pytest.raises(SourceError, match=r"train.txt: the file is gone.*\. The root is .*: VOCdevkit/VOC2012 below"):
        build_index(Voc(tmp_path, "train"), tmp_path / "cache")
    Path(spec.root, "ImageSets/Main/train.txt").write_bytes(b"")
    with pytest.raises(SourceError, match=r"train.txt: the file is empty$"):
        build_index(spec, tmp_path / "cache")


def test_lists_that_name_nothing_or_lie_outside_are_refused(tmp_path: Path) -> None:
    spec = voc_tree(tmp_path / "data", 1)
    with pytest.raises(SourceError, match=r"the list .*/val.txt: the file is gone"):
        build_index(Voc(spec.root, "val"), tmp_path / "cache")
    roots = Roots([spec.root])
    names = Path(spec.root, "ImageSets/Main/train.txt")
    for text, error in (("\n\n", SourceError), ("a/\n", SourceError), ("../../x\n", OutsideRootsError)):
        names.write_text(text)
        with pytest.raises(error):
            build_index(spec, tmp_path / "cache", roots=roots)
    names.write_text("0\n")
    assert len(opened(spec, tmp_path, roots)) == 1
    for path in (Path(spec.root, "Annotations/0.xml"), names):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
        with pytest.raises(OutsideRootsError):
            build_index(spec, tmp_path / "new", roots=roots)
    assert len(opened(spec, tmp_path)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"split": "a/b"}, "the name of a list"),
        ({"split": ""}, "the name of a list"),
        ({"classes": []}, "a list of 1 to 256 names"),
        ({"classes": ["a", "a"]}, "occurs twice"),
        ({"classes": [3]}, "the name of a class"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Voc("/data", **arguments)
