"""How `Voc` is read: the list of a split and the XML file of each image, once, into an index of images and boxes.

The samples are those of torchvision's VOCDetection in its order. An XML file that cannot be used makes its image a bad
sample. The index stays valid while the list and the XML files have the same times.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from prepserver.pipeline.sources.voc import CLASSES, Voc
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError, printable
from prepserver.source.files import MASKS, FileTable, check_folders
from prepserver.source.objects import MOST_COORDINATE, BoxSource, ObjectTable
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source, read_regular_file

_MOST_LIST_BYTES = 1 << 30
_MOST_XML_BYTES = 4 << 20
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class VocReader(ScanningReader):
    kind = Voc
    spec: Voc

    @property
    def _list_path(self) -> str:
        lists = "Segmentation" if self.spec.masks else "Main"
        return f"{self.spec.root}/ImageSets/{lists}/{self.spec.split}.txt"

    def _xml_path(self, name: bytes) -> bytes:
        return os.fsencode(self.spec.root) + b"/Annotations/" + name + b".xml"

    def _names(self, roots: Roots | None = None) -> list[bytes]:
        """Return the names of the images, which the split lists line by line."""
        path = self._list_path
        if roots is not None:
            roots.check_path("the list", path)
        try:
            text = read_regular_file(os.fsencode(path), _MOST_LIST_BYTES, roots)
        except SampleError as error:
            raise SourceError(f"the list {path}: {error.reason}") from error
        names = [name for line in text.splitlines() if (name := line.strip())]
        for number, name in enumerate(names, 1):
            if b"\0" in name or name.endswith(b"/"):
                raise SourceError(f"{path}, entry {number}: {printable(os.fsdecode(name))} names no image")
        if not names:
            raise SourceError(f"the list {path} names no images")
        return names

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        times = array("q", [_time_ns(os.fsencode(self._list_path))])
        classes = self.spec.classes or CLASSES
        labels = {name: label for label, name in enumerate(classes)}
        files, objects = FileTable(), ObjectTable(self.spec.columns)
        masks = FileTable() if self.spec.masks else None
        for name in self._names(roots):
            folder, slash, last = name.rpartition(b"/")
            files.add(b"JPEGImages/" + folder + slash, last + b".jpg", 0)
            if masks is not None:
                masks.add(b"SegmentationClass/" + folder + slash, last + b".png", 0)
            path = self._xml_path(name)
            if roots is not None:
                roots.check_path("the annotations", path)
            times.append(_time_ns(path))
            try:
                root = parsed(read_regular_file(path, _MOST_XML_BYTES, roots))
                rows = list(self._rows(root, labels))
                objects.add(rows, (_side(root, "height"), _side(root, "width")))
            except (SampleError, ValueError) as error:
                objects.add_fault(f"its annotations, {printable(os.fsdecode(path))}: {error}", self.spec.root)
            progress.found(len(files))
        meta, sections = objects.contents(files, list(classes), masks)
        sections["watched_times_ns"] = memoryview(times)
        places = Places()
        for table in filter(None, (files, masks)):
            table.add_to(places, os.fsencode(self.spec.root) + b"/")
        if roots is not None:
            self.check_roots(sections.__getitem__, roots)
        progress.finished(len(files))
        return Scan(meta, sections, list(times), places.found())

    def _rows(self, root: Element, labels: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each box; see `ObjectTable.form`.

        Raises:
            ValueError: A box that is none.
        """
        for each in root.findall("object"):
            difficult = (each.findtext("difficult") or "0").strip() not in ("0", "")
            if difficult and not self.spec.difficult:
                continue
            name = (each.findtext("name") or "").strip()
            if name not in labels:
                raise ValueError(
                    f"an object of class {printable(name)!r}; name the dataset's own by Voc(classes=[...])"
                )
            box = [float(each.findtext(f"bndbox/{side}") or "nan") for side in _SIDES]
            if not all(abs(side) <= MOST_COORDINATE for side in box) or box[2] < box[0] or box[3] < box[1]:
                raise ValueError(f"an object of class {name!r} has the box {box}")
            yield (box, labels[name], *([int(difficult)] if self.spec.difficult else []))

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        for prefix in ("", *([MASKS] if self.spec.masks else [])):
            check_folders(sections, self.spec.root, roots, prefix)

    def is_current(self, container: Container) -> bool:
        times = memoryview(container.section("watched_times_ns")).cast("q")
        paths = [os.fsencode(self._list_path), *map(self._xml_path, self._names())]
        return len(paths) == len(times) and all(map(_is_of, paths, times))

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        return BoxSource(container, self.spec.root, self.spec.columns, roots=roots)


def parsed(text: bytes) -> Element:
    """Return the root of an XML file from strangers: without a DOCTYPE, so no entity can grow or lead to a file.

    Raises:
        ValueError: It is no XML, or has a DOCTYPE.
    """
    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, LookupError) as error:  # the latter: an encoding that Python does not have
        raise ValueError(f"no XML: {error}") from error
    return builder.close()


def _refuse(*_: object) -> None:
    raise ValueError("has a DOCTYPE, which is refused")


def _side(root: Element, name: str) -> int:
    side = int(root.findtext(f"size/{name}") or "0")  # 0: unknown
    if not 0 <= side < 1 << 31:
        raise ValueError(f"a {name} of {side}")
    return side


def _time_ns(path: bytes) -> int:
    """Return the time of a file; 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _is_of(path: bytes, time_ns: int) -> bool:
    return _time_ns(path) == time_ns
