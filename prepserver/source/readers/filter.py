"""How `Filter` is read."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.filter import Filter
from prepserver.source.composed import PickingReader
from prepserver.source.errors import SampleError, SourceError, printable, unusable
from prepserver.source.progress import Progress
from prepserver.source.samples import Source
from prepserver.source.storage.remote import RemoteError

log = logging.getLogger(__name__)

_AT_ONCE = 1 << 16


class FilterReader(PickingReader):
    spec: Filter

    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        numbers = self._numbers(source)
        found = []
        left_out, why = 0, ""
        for start in range(0, len(source), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(source))
            labels, unread, first = _labels(source, start, stop)
            found.append(np.flatnonzero(np.isin(labels, numbers)) + start)
            left_out, why = left_out + unread, why or first
            progress.found(stop)
        picked = np.concatenate(found)
        if left_out:
            log.warning(
                "%s: %d samples have no readable label, and are left out. The first is %s",
                self.spec.location, left_out, why,
            )  # fmt: skip
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


def _labels(source: Source, start: int, stop: int) -> tuple[npt.NDArray[np.int64], int, str]:
    """Return labels, -1 where a sample has none that can be read, the number of these, and why the first has none.

    Raises:
        SourceError: A file or an object cannot be read, which may pass.
    """
    try:
        return source.labels(start, stop), 0, ""
    except SampleError:
        pass  # one by one, to find which
    labels, unread, why = np.full(stop - start, -1, np.int64), 0, ""
    for index in range(start, stop):
        try:
            labels[index - start] = source.label(index)
        except SampleError as error:
            if isinstance(error, RemoteError) or isinstance(error.__cause__, OSError):
                raise unusable("the sample", source.name(index), error) from error
            unread, why = unread + 1, why or f"{source.name(index)}: {error.reason}"
    return labels, unread, why
