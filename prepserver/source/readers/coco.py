"""How `Coco` is read: its JSON file once, into an index of images and boxes.

The samples are those of torchvision's CocoDetection in its order: images sorted by their ids, boxes as in the file. An
annotation that cannot be used makes its image a bad sample; a file that contradicts itself is refused. The index stays
valid while the file has the same time and size.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from prepserver.pipeline.ops.decode import DEFAULT_MAX_PIXELS
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources.coco import Coco
from prepserver.source import outlines
from prepserver.source.container import Container
from prepserver.source.errors import SourceError, printable
from prepserver.source.files import FileTable, FileTableReader, joined
from prepserver.source.objects import MOST_COORDINATE, BoxSource, ObjectTable
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan
from prepserver.source.roots import Roots
from prepserver.source.samples import Record, Source
from prepserver.source.storage import File, open_file, statuses, stream

MOST_BYTES = 4 << 30  # of the JSON file; COCO's largest has 450 MB

_LOOKS = 8

_INT64 = range(-(1 << 63), 1 << 63)


class _Annotation(NamedTuple):
    """The used parts of an annotation. Its outline, most of the file, is dropped or compacted when it is parsed."""

    id: object
    image: object
    category: object
    box: object
    crowd: object
    points: object
    outline: Any = None


class _Fault(Exception):
    """Why an image's annotations cannot be used."""


class CocoReader(FileTableReader):
    spec: Coco

    def scan(self, progress: Progress) -> Scan:
        path = self.spec.annotations
        if self.spec.masks:
            outlines.pycocotools()  # before a file of half a gigabyte is read
        found, file = _parsed(path, progress, self.roots, self.spec.masks)
        images = _by_id(path, found, "images")
        categories = _by_id(path, found, "categories")
        labels = {number: label for label, number in enumerate(sorted(categories))}
        boxes: dict[int, list[_Annotation]] = {number: [] for number in images}
        for place, each in enumerate(_list(path, found, "annotations")):
            if not isinstance(each, _Annotation):
                raise SourceError(
                    f"{path}: annotations[{place}] has no image_id, the id of the image that it belongs to"
                )
            if type(each.image) is not int or each.image not in boxes:
                raise SourceError(
                    f"{path}: annotation {_shown(each.id)} belongs to image {_shown(each.image)}, which the file does "
                    "not list. List the image, or remove the annotation"
                )
            boxes[each.image].append(each)
        files, objects, drawn = FileTable(self.spec.root), ObjectTable(self.spec.columns), list[bytes]()
        for number in sorted(images):
            _add_file(files, path, number, images[number].get("file_name"))
            try:
                mine = [each for each in boxes[number] if self.spec.crowd or not each.crowd]
                rows = list(self._rows(mine, labels))
                size = _side("height", images[number]), _side("width", images[number])
                if self.spec.sizes and not all(size):
                    raise _Fault("it has no height and width, which sizes need")
                shapes = _outlines(mine, size) if self.spec.masks else []
            except _Fault as fault:
                objects.add_fault(str(fault), path, number)
            else:
                objects.add(rows, size, number, sized=True)
                drawn += shapes
        classes = [str(categories[number].get("name", number)) for number in sorted(categories)]
        meta, sections = objects.contents(files, classes)
        meta |= {"category_ids": sorted(categories)}
        if self.spec.masks:
            sections |= outlines.sections(drawn)
            meta["content_digest"] = hashlib.sha256(meta["content_digest"].encode() + b"".join(drawn)).hexdigest()
        places = files.add_to(Places())
        self._check_root(files)
        return Scan(meta, sections, places, [(path, file)])

    def _check_root(self, files: FileTable) -> None:
        """Raise `SourceError` if none of the first images exists: the folder is wrong then."""
        base, folders = os.fsencode(self.spec.root) + b"/", files.folders
        paths = [os.fsdecode(joined(base, folders[folder] + name)) for folder, name in itertools.islice(files, _LOOKS)]
        for path in paths:
            self.roots.check_path("the image", path)
        if not any(map(_is_there, paths)):
            raise SourceError(
                f"{self.spec.annotations} names images that do not exist, such as {printable(paths[0])}: "
                f"root={self.spec.root!r} must be the folder that their file_name is relative to"
            )

    def _rows(self, annotations: list[_Annotation], labels: dict[int, int]) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each box; see `ObjectTable.form`."""
        for each in annotations:
            what = f"annotation {_shown(each.id)}"
            if type(each.category) is not int or each.category not in labels:
                raise _Fault(f"{what} has the category {_shown(each.category)}, which the file does not list")
            left, top, width, height = _numbers(what, "bbox", each.box, 4)
            if width < 0 or height < 0:
                raise _Fault(f"{what} has a bbox of negative size: {_shown(each.box)}")
            row: tuple[Any, ...] = ((left, top, width, height), labels[each.category])
            if self.spec.crowd:
                row += (1 if each.crowd else 0,)
            if self.spec.masks:
                row += (0,)  # reading finds which objects can be seen
            if count := self.spec.keypoints:
                points = _numbers(what, "keypoints", [0] * 3 * count if each.points is None else each.points, 3 * count)
                row += ([points[at : at + 3] for at in range(0, 3 * count, 3)],)
            yield row

    def read_by(self, container: Container) -> Source:
        return (_OutlinedSource if self.spec.masks else BoxSource)(container, self.spec, self.roots)


class _OutlinedSource(BoxSource):
    """Images with boxes and a mask of instances."""

    def __init__(self, container: Container, spec: SourceSpec, roots: Roots) -> None:
        super().__init__(container, spec, roots)
        self._outlines = outlines.Outlines(container)

    def read(self, index: int) -> Record:
        record = super().read(index)
        _, _, first, count, height, width, _ = self.entry(index)
        mask, instances = self._outlines.painted(first, count, (height, width))
        return record | {"mask": mask, "instances": instances}


def _parsed(path: str, progress: Progress, roots: Roots, masks: bool) -> tuple[dict[str, Any], File]:
    """Return the content of the file, with `_Annotation`s, and the closed file, for its status."""
    count = 0

    def compact(found: dict[str, Any]) -> Any:
        nonlocal count
        if "image_id" not in found:
            return found
        count += 1
        progress.found(count)
        names = ("id", "image_id", "category_id", "bbox", "iscrowd", "keypoints")
        made = _Annotation(*(found.get(name) for name in names))
        return made._replace(outline=outlines.compact(found.get("segmentation"))) if masks else made

    try:
        with open_file(roots, "the annotations", path) as file:
            if file.size > MOST_BYTES:
                raise SourceError(
                    f"{path} has {file.size} bytes, more than the limit of {MOST_BYTES}: split its images over several "
                    "files, and join these with Concat"
                )
            found = json.load(io.TextIOWrapper(stream(file), "utf-8-sig"), object_hook=compact)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SourceError(
            f"{path} is not in COCO's format: it must be an object with images, annotations and categories"
        )
    return found, file


def _list(path: str, found: dict[str, Any], name: str) -> list[Any]:
    entries = found.get(name)
    if not isinstance(entries, list):
        raise SourceError(f"{path} is not in COCO's format: it has no list of {name}")
    return entries


def _by_id(path: str, found: dict[str, Any], name: str) -> dict[int, dict[str, Any]]:
    by_id: dict[int, dict[str, Any]] = {}
    for entry in _list(path, found, name):
        number = entry.get("id") if isinstance(entry, dict) else None
        if type(number) is not int or number not in _INT64 or number in by_id:
            twice = type(number) is int and number in by_id
            why = "occurs twice" if twice else "must be a whole number of 64 bits"
            raise SourceError(f"{path}: among the {name}, the id {_shown(number)} {why}")
        by_id[number] = entry
    if not by_id:
        raise SourceError(f"{path} lists no {name}")
    return by_id


def _add_file(files: FileTable, path: str, number: int, given: object) -> None:
    if not isinstance(given, str) or not given or given.endswith("/") or "\0" in given:
        raise SourceError(f"{path}: the file_name of image {number} is {_shown(given)}, and must be the path of a file")
    try:
        files.add(given.encode(), 0)
    except UnicodeEncodeError:
        raise SourceError(f"{path}: the file_name of image {number} is not valid text: {_shown(given)}") from None


def _numbers(what: str, name: str, given: Any, count: int) -> list[float]:
    is_list = isinstance(given, list) and len(given) == count
    if is_list and all(type(each) in (int, float) and abs(each) <= MOST_COORDINATE for each in given):
        return list(given)
    raise _Fault(f"the {name} of {what} is {_shown(given)}, and must be {count} numbers within {MOST_COORDINATE:g}")


def _outlines(annotations: list[_Annotation], size: tuple[int, int]) -> list[bytes]:
    height, width = size
    if not all(size):
        raise _Fault("it has no height and width, which masks need")
    if height * width > DEFAULT_MAX_PIXELS:
        raise _Fault(f"it has {height}x{width} pixels, more than the limit of {DEFAULT_MAX_PIXELS} for masks")
    shapes = []
    for each in annotations:
        try:
            shapes.append(outlines.run_lengths(each.outline, height, width))
        except outlines.BadOutline as error:
            raise _Fault(f"the segmentation of annotation {_shown(each.id)} {error}") from error
    return shapes


def _side(name: str, image: dict[str, Any]) -> int:
    side = image.get(name) or 0  # 0: unknown
    if type(side) not in (int, float) or not 0 <= side < 1 << 31 or side != int(side):
        raise _Fault(f"its {name} is {_shown(side)}")
    return int(side)


def _is_there(path: str) -> bool:
    try:
        return bool(statuses([path]))
    except OSError:
        return False


def _shown(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= 80 else text[:77] + "..."
