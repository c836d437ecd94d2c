"""`Filter`: the samples of some classes."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Label
from prepserver.pipeline.source import SourceSpec

MAX_LABELS = 4096


class Filter(Composed):
    """The samples whose label is one of `labels`. They keep their order and their labels.

    Attributes:
        source: The source.
        labels: Numbers or names of classes, 1 to 4096 of them.

    Raises:
        SpecError: The source has no class number for each sample. `Coco`, for example, has labels for boxes.
    """

    def __init__(self, source: SourceSpec, labels: Sequence[int | str]) -> None:
        if not isinstance(labels, list | tuple) or not 0 < len(labels) <= MAX_LABELS:
            raise SpecError("labels", labels, f"must be a list of 1 to {MAX_LABELS} labels or names of classes")
        kept = {each if isinstance(each, str) else integer("labels", each, 0, (1 << 63) - 1) for each in labels}
        self.labels = tuple(sorted(kept, key=lambda each: (isinstance(each, str), each)))
        super().__init__([source])
        if not any(isinstance(kind, Label) for kind in self.columns.values()):
            reason = (
                f"has no class number for a sample to choose by, only {', '.join(self.columns)}: use Subset(file=...)"
            )
            raise SpecError("source", self.sources[0].location, reason)
