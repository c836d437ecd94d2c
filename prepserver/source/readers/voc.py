"""How `Voc` is read: the list of a split and the XML file of each image, once, into an index of images and boxes.

The samples are those of torchvision's VOCDetection in its order. An XML file that cannot be used makes its image a bad
sample. The index stays valid while the list and the XML files have the same times.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from prepserver.pipeline.sources.voc import CLASSES, Voc
from prepserver.pipeline.urls import is_url
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError, printable, unusable
from prepserver.source.files import FileTable, FileTableReader
from prepserver.source.objects import MOST_COORDINATE, BoxSource, ObjectTable
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan
from prepserver.source.samples import read_file
from prepserver.source.storage import versions

_MOST_LIST_BYTES = 1 << 30
_MOST_XML_BYTES = 4 << 20
_AT_ONCE = 16
_ROOT = ". The root is the folder that holds ImageSets: VOCdevkit/VOC2012 below the root that torchvision takes"
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class _Annotation(NamedTuple):
    """The content of an XML file: a tuple of `ObjectTable.form` for each box, and (height, width) of the image."""

    version: int  # of the file
    rows: list[tuple[Any, ...]]
    size: tuple[int, int]
    fault: str = ""  # why the file cannot be used


class VocReader(FileTableReader):
    spec: Voc
    source = BoxSource

    @property
    def _list_path(self) -> str:
        lists = "Segmentation" if self.spec.masks else "Main"
        return f"{self.spec.root}/ImageSets/{lists}/{self.spec.split}.txt"

    def _xml_path(self, name: bytes) -> str:
        return f"{self.spec.root}/Annotations/{os.fsdecode(name)}.xml"

    def _names(self) -> list[bytes]:
        """Return the names of the images, which the split lists line by line."""
        path = self._list_path
        self.roots.check_path("the list", path)
        try:
            text = read_file(path, _MOST_LIST_BYTES, self.roots)
        except SampleError as error:
            is_gone = errno.ENOENT in (error.errno, getattr(error.__cause__, "errno", None))
            raise SourceError(f"the list {path}: {error.reason}{_ROOT if is_gone else ''}") from error
        names = [name for line in text.splitlines() if (name := line.strip())]
        for number, name in enumerate(names, 1):
            if b"\0" in name or name.endswith(b"/"):
                raise SourceError(f"{path}, entry {number}: {printable(os.fsdecode(name))} names no image")
        if not names:
            raise SourceError(f"the list {path} names no images")
        return names

    def scan(self, progress: Progress) -> Scan:
        times = array("q", versions([self._list_path]))
        classes = self.spec.classes or CLASSES
        files, objects = FileTable(self.spec.root), ObjectTable(self.spec.columns)
        masks = FileTable(self.spec.root) if self.spec.masks else None
        names = self._names()
        found = progress.over(self._annotation, names, _AT_ONCE, lambda: 0, remote=is_url(self.spec.root))
        for name, (version, rows, size, fault) in zip(names, found, strict=True):
            files.add(b"JPEGImages/" + name + b".jpg", 0)
            if masks is not None:
                masks.add(b"SegmentationClass/" + name + b".png", 0)
            times.append(version)
            if fault:
                objects.add_fault(fault, self.spec.root)
            else:
                objects.add(rows, size)
        meta, sections = objects.contents(files, list(classes), masks)
        sections["watched_times_ns"] = memoryview(times)
        places = files.add_to(Places())
        if masks is not None:
            masks.add_to(places)
        return Scan(meta, sections, places, mtimes_ns=() if is_url(self.spec.root) else times)

    def _annotation(self, name: bytes) -> _Annotation:
        """Read the annotations of an image, in a thread; a missing or damaged file makes the image a bad sample.

        Raises:
            SourceError: The file lies outside the roots, or its store fails.
        """
        path, version = self._xml_path(name), 0
        self.roots.check_path("the annotations", path)
        labels = {name: label for label, name in enumerate(self.spec.classes or CLASSES)}
        try:
            (version,) = versions([path])
            root = parsed(read_file(path, _MOST_XML_BYTES, self.roots))
            return _Annotation(version, list(self._rows(root, labels)), (_side(root, "height"), _side(root, "width")))
        except (SampleError, ValueError) as error:
            if is_url(path) and isinstance(error, SampleError) and error.errno != errno.ENOENT:
                raise unusable("the annotations", path, error) from error  # perhaps only for a while
            return _Annotation(version, [], (0, 0), f"its annotations, {printable(path)}: {error}")

    def _rows(self, root: Element, labels: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each box, see `ObjectTable.form`; raise `ValueError` for a bad one."""
        for each in root.findall("object"):
            difficult = (each.findtext("difficult") or "0").strip() not in ("0", "")
            if difficult and not self.spec.difficult:
                continue
            name = (each.findtext("name") or "").strip()
            if name not in labels:
                raise ValueError(
                    f"an object has the unknown class {printable(name)!r}; pass all classes, Voc(classes=[...])"
                )
            box = [float(each.findtext(f"bndbox/{side}") or "nan") for side in _SIDES]
            if not all(abs(side) <= MOST_COORDINATE for side in box) or box[2] < box[0] or box[3] < box[1]:
                raise ValueError(f"an object of class {name!r} has the box {box}")
            yield (box, labels[name], *([int(difficult)] if self.spec.difficult else []))

    def is_current(self, container: Container) -> bool:
        times = memoryview(container.section("watched_times_ns")).cast("q")
        paths = [self._list_path, *map(self._xml_path, self._names())]
        return len(paths) == len(times) and versions(paths) == list(times)


def parsed(text: bytes) -> Element:
    """Parse a stranger's XML; raises `ValueError` for a DOCTYPE, whose entities may grow or name files."""
    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, LookupError) as error:  # the latter: an encoding that Python does not have
        raise ValueError(f"not XML: {error}") from error
    return builder.close()


def _refuse(*_: object) -> None:
    raise ValueError("it has a DOCTYPE, which is refused; remove it")


def _side(root: Element, name: str) -> int:
    side = int(root.findtext(f"size/{name}") or "0")  # 0: unknown
    if not 0 <= side < 1 << 31:
        raise ValueError(f"its {name} is {side}")
    return side
