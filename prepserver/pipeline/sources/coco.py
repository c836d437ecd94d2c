"""`Coco`: images with boxes, from a file in COCO's format."""

from collections.abc import Sequence

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Boxes, Image, Keypoints, Mask, PerBox, Scalar
from prepserver.pipeline.record import Columns
from prepserver.pipeline.source import PathLike, SourceSpec, absolute

PERSON_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))
"""Left and right eye, ear, shoulder, elbow, wrist, hip, knee and ankle among COCO's 17 joints of a person."""


class Coco(SourceSpec):
    """Images with boxes, from a JSON file in COCO's format: the samples of torchvision's CocoDetection, in its order.

    Images are sorted by their ids; those without boxes are samples, too. Columns are ``image``, ``boxes``, ``labels``
    and ``image_id``. Category ids, sorted, become labels from 0, and their names become the classes. Boxes are (left,
    top, right, bottom) in pixels of the upright image, not clipped to it. A sample is bad if the width and height in
    the file are not those of the upright image.

    Attributes:
        root: The folder of images, as the daemon's machine sees it. A relative path counts from the current directory.
        annotations: The JSON file, such as ``instances_train2017.json``.
        crowd: Keep boxes around crowds, and mark them in a column ``iscrowd`` (1 or 0). False, the default, leaves them
            out, as training scripts do.
        keypoints: Number of keypoints of each box, such as 17 for persons, for a column ``keypoints``; None for no such
            column.
        flip_pairs: Places of two keypoints that swap in a mirrored image, such as the left and the right eye. None for
            those of COCO's persons if there are 17 keypoints, else for no pairs.
        masks: Add a mask of instances, a column ``mask``: 0 where there is no object, else the object's number, which
            the column ``instances`` has for each box. Where objects overlap, the smaller one is on top. An object that
            is hidden entirely, or comes after the 255th of an image, has the number 0. False by default; it needs
            pycocotools.
        sizes: Add a column ``orig_size``, the (height, width) of the upright image in the dataset, int32: evaluation
            maps boxes back with it. None, the default, and False add none. Images whose size is not in the file are
            bad samples then.
    """

    paths = ("root", "annotations")

    def __init__(
        self,
        root: str | PathLike,
        annotations: str | PathLike,
        crowd: bool = False,
        keypoints: int | None = None,
        flip_pairs: Sequence[Sequence[int]] | None = None,
        masks: bool = False,
        sizes: bool | None = None,
    ) -> None:
        if keypoints is not None:
            keypoints = checks.integer("keypoints", keypoints, 1, 1000)
            flip_pairs = flip_pairs if flip_pairs is not None else PERSON_PAIRS if keypoints == 17 else ()
        elif flip_pairs:
            raise SpecError("flip_pairs", flip_pairs, "needs keypoints, the number of keypoints of each box")
        self.root = absolute("root", root)
        self.annotations = absolute("annotations", annotations)
        self.crowd = checks.flag("crowd", crowd)
        self.keypoints = keypoints
        self.flip_pairs = None if flip_pairs is None else checks.pairs("flip_pairs", flip_pairs, keypoints or 0)
        self.masks = checks.flag("masks", masks)
        self.sizes = None if sizes is None else checks.flag("sizes", sizes) or None  # None: not on the wire, as in 0.2

    @property
    def columns(self) -> Columns:
        return {
            "image": Image(),
            **({"mask": Mask()} if self.masks else {}),
            "boxes": Boxes(),
            "labels": PerBox(),
            **({"iscrowd": PerBox()} if self.crowd else {}),
            **({"instances": PerBox(dtype="int16")} if self.masks else {}),
            **({"keypoints": Keypoints(each=self.keypoints, pairs=self.flip_pairs or ())} if self.keypoints else {}),
            "image_id": Scalar("int64"),
            **({"orig_size": Array((2,), "int32")} if self.sizes else {}),
        }
