"""`Voc`: images with boxes, in PASCAL VOC's folders."""

from collections.abc import Sequence

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Boxes, Image, Mask, PerBox
from prepserver.pipeline.record import Columns
from prepserver.pipeline.source import PathLike, SourceSpec, absolute

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""Of PASCAL VOC."""

_MOST_CLASSES = 256  # the spec travels in messages of 64 KiB
_MOST_CHARS = 64


class Voc(SourceSpec):
    """Images with boxes, in PASCAL VOC's folders: the samples of torchvision's VOCDetection, in its order.

    The lines of ``root/ImageSets/Main/<split>.txt`` name ``root/JPEGImages/<name>.jpg`` and
    ``root/Annotations/<name>.xml``. Columns are ``image``, ``boxes`` and ``labels``. Boxes are (xmin, ymin, xmax, ymax)
    as in the file, in pixels of the upright image.

    Attributes:
        root: The folder with ``ImageSets``, such as ``VOCdevkit/VOC2012``, as the daemon's machine sees it. A relative
            path counts from the current directory.
        split: Name of the list of images, such as "train" or "val".
        classes: Names of the classes; the place of a name is its label. None for the 20 of PASCAL VOC, sorted, from 0
            (torchvision counts them from 1).
        masks: Read the list in ``ImageSets/Segmentation`` instead, and ``SegmentationClass/<name>.png`` as a column
            ``mask``: the samples of torchvision's VOCSegmentation, with boxes. False by default.
        difficult: Keep boxes that are marked as difficult, and mark them in a column ``difficult`` (1 or 0). False, the
            default, leaves them out, as training scripts do.
    """

    paths = ("root",)

    def __init__(
        self,
        root: str | PathLike,
        split: str = "train",
        classes: Sequence[str] | None = None,
        masks: bool = False,
        difficult: bool = False,
    ) -> None:
        if not isinstance(split, str) or not split or len(split) > _MOST_CHARS or {*"/\0"} & {*split}:
            raise SpecError("split", split, "must be the name of a list in ImageSets, such as 'train'")
        self.root = absolute("root", root)
        self.split = split
        self.classes = None if classes is None else _names(classes)
        self.masks = checks.flag("masks", masks)
        self.difficult = checks.flag("difficult", difficult)

    @property
    def columns(self) -> Columns:
        difficult = {"difficult": PerBox()} if self.difficult else {}
        mask = {"mask": Mask()} if self.masks else {}
        return {"image": Image(), **mask, "boxes": Boxes(), "labels": PerBox(), **difficult}


def _names(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not 0 < len(given) <= _MOST_CLASSES:
        raise SpecError("classes", given, f"must be a list of 1 to {_MOST_CLASSES} names")
    for name in given:
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_CHARS or not name.isprintable():
            raise SpecError("classes", name, f"must be the name of a class: 1 to {_MOST_CHARS} characters")
        if given.count(name) > 1:
            raise SpecError("classes", name, "occurs twice")
    return tuple(given)
