"""How `Filter` is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.filter import Filter
from prepserver.source.composed import PickingReader
from prepserver.source.errors import SampleError, SourceError, printable
from prepserver.source.progress import Progress
from prepserver.source.samples import Source

_AT_ONCE = 1 << 16


class FilterReader(PickingReader):
    spec: Filter

    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        numbers = self._numbers(source)
        found = []
        for start in range(0, len(source), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(source))
            try:
                labels = source.labels(start, stop)
            except SampleError as error:
                raise SourceError(f"cannot read the labels of {self.spec.location}: {error.reason}") from error
            found.append(np.flatnonzero(np.isin(labels, numbers)) + start)
            progress.found(stop)
        picked = np.concatenate(found)
        if not len(picked):
            wanted = ", ".join(map(repr, self.spec.labels))
            shown = wanted if len(wanted) <= 100 else wanted[:97] + "..."
            raise SourceError(f"{self.spec.location} has no samples with the labels {shown}")
        return picked

    def _numbers(self, source: Source) -> list[int]:
        names = source.classes()
        numbers: list[int] = []
        for label in self.spec.labels:
            if isinstance(label, int):
                numbers.append(label)
            elif label in names:
                numbers.append(names.index(label))
            else:
                known = printable(", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "none"
                raise SourceError(f"{self.spec.location} has no class {label!r}; its classes: {known}")
        return numbers
