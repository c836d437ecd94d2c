"""`Coco`: images with boxes, from a file in COCO's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Boxes, Image, Keypoints, PerBox, Scalar
from prepserver.pipeline.record import Record
from prepserver.pipeline.source import PathLike, SourceSpec, absolute

PERSON_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))
"""Left and right eye, ear, shoulder, elbow, wrist, hip, knee and ankle among COCO's 17 joints of a person."""


@dataclass(frozen=True, init=False)
class Coco(SourceSpec):
    """Images with boxes, from a JSON file in COCO's format: the samples of torchvision's CocoDetection in its order.

    Images are sorted by their ids, and those without boxes are samples, too. Columns are ``image``, ``boxes``,
    ``labels`` and ``image_id``. Category ids, sorted, become labels from 0, and their names are the classes. Boxes are
    (left, top, right, bottom), unclamped, on the upright image: if the file's width and height are not those of the
    upright image, the sample is bad.

    Attributes:
        root: The folder of images, as the daemon's machine sees it; a relative path counts from the current directory.
        annotations: The JSON file, such as ``instances_train2017.json``.
        crowd: Keep boxes around crowds, in a column ``iscrowd`` (1 or 0). False, the default, leaves them out, as
            training scripts do.
        keypoints: Points of each box, such as 17 for persons, as a column ``keypoints``; None for none.
        flip_pairs: Places of two keypoints that change names in a mirror, such as the left and the right eye. None for
            those of COCO's persons if there are 17 keypoints, else for none.

    Raises:
        SpecError: `root` or `annotations` is no path, or another argument is not possible.
    """

    paths = ("root", "annotations")
    root: str
    annotations: str
    crowd: bool
    keypoints: int | None = None
    flip_pairs: tuple[tuple[int, int], ...] | None = None

    def __init__(
        self,
        root: str | PathLike,
        annotations: str | PathLike,
        crowd: bool = False,
        keypoints: int | None = None,
        flip_pairs: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if keypoints is not None:
            keypoints = checks.integer("keypoints", keypoints, 1, 1000)
            flip_pairs = flip_pairs if flip_pairs is not None else PERSON_PAIRS if keypoints == 17 else ()
        self._keep(
            root=absolute("root", root),
            annotations=absolute("annotations", annotations),
            crowd=checks.flag("crowd", crowd),
            keypoints=keypoints,
            flip_pairs=None if flip_pairs is None else checks.pairs("flip_pairs", flip_pairs, keypoints or 0),
        )

    @property
    def columns(self) -> Record:
        """As `SourceSpec.columns`."""
        return {
            "image": Image(),
            "boxes": Boxes(),
            "labels": PerBox(),
            **({"iscrowd": PerBox()} if self.crowd else {}),
            **({"keypoints": Keypoints(each=self.keypoints, pairs=self.flip_pairs or ())} if self.keypoints else {}),
            "image_id": Scalar("int64"),
        }
