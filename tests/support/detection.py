"""Small datasets with boxes, as COCO and PASCAL VOC write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from prepserver.pipeline.sources import Coco, Voc
from tests.support.tiny_images import jpeg

HEIGHT, WIDTH = 40, 56


def annotation(number: int, spec: Coco, index: int, bbox: Any = (4, 5, 20.5, 10.25), **more: Any) -> dict[str, Any]:
    """An annotation of the image at an index."""
    return {
        "id": number, "image_id": 10 * (index + 1), "category_id": 3, "bbox": bbox, "iscrowd": 0,
        "segmentation": [[1, 2, 3, 4, 5, 6]], "area": 5.0,
    } | more  # fmt: skip


def coco_tree(root: Path, count: int) -> Coco:
    """`count` images of 40 x 56 pixels with ids 10, 20 and so on, in the file in another order; 0 to 4 boxes each."""
    folder = root / "images"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(count)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(count):
        (folder / f"{index}.jpg").write_bytes(jpeg(index, HEIGHT, WIDTH))
        images.append({"id": 10 * (index + 1), "file_name": f"{index}.jpg", "height": HEIGHT, "width": WIDTH})
        for _ in range(index % 5):
            left, top = rng.uniform(0, 30, 2).round(2).tolist()
            number = len(annotations) + 1
            box = [left, top, *rng.uniform(3, 25, 2).round(2).tolist()]
            category = int(rng.choice([1, 3, 17]))
            right, bottom = left + box[2], top + box[3]
            annotations.append(
                {"id": number, "image_id": 10 * (index + 1), "category_id": category, "bbox": box,
                 "iscrowd": int(number % 4 == 0), "area": 1.0,
                 "segmentation": [[left, top, right, top, right, bottom]],
                 "keypoints": [left + 1, top + 1, 2, right, bottom, 1, *45 * [0]]}
            )  # fmt: skip
    categories = [{"id": 17, "name": "zebra"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]
    content = {
        "info": {}, "images": images[::-1], "annotations": annotations[::2] + annotations[1::2],
        "categories": categories,
    }  # fmt: skip
    (root / "instances.json").write_text(json.dumps(content))
    return Coco(folder, root / "instances.json")


def voc_xml(*objects: str, height: int = HEIGHT, width: int = WIDTH) -> str:
    """An annotation file."""
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><folder>x</folder>{size}{''.join(objects)}</annotation>"


def voc_object(name: str, *box: float, difficult: int = 0) -> str:
    """One of its objects."""
    sides = "".join(f"<{n}>{v}</{n}>" for n, v in zip(("xmax", "xmin", "ymax", "ymin"), box, strict=True))
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    flag = f"<difficult>{difficult}</difficult>"
    return f"<object><name>{name}</name>{flag}{part}<bndbox>{sides}</bndbox></object>"


def voc_tree(root: Path, count: int) -> Voc:
    """`count` images, listed in another order than that of their names, with as many boxes as their number mod 3."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for index in range(count):
        (root / f"JPEGImages/{index}.jpg").write_bytes(jpeg(index, HEIGHT, WIDTH))
        objects = [
            voc_object("cat" if k else "person", 20 + k, 3, 30, 4 + index, difficult=k) for k in range(index % 3)
        ]
        (root / f"Annotations/{index}.xml").write_text(voc_xml(*objects))
    (root / "ImageSets/Main/train.txt").write_text("".join(f"{index}\n" for index in reversed(range(count))))
    return Voc(root)
