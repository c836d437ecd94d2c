"""How `BucketByLength` is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Scalar
from prepserver.pipeline.sources.bucket_by_length import BucketByLength
from prepserver.source.composed import PickingReader, records
from prepserver.source.progress import Progress
from prepserver.source.samples import Source


class BucketByLengthReader(PickingReader):
    spec: BucketByLength

    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        column, lengths = self.spec.column, np.zeros(len(source))
        measure: Callable[[Any], float] = float if isinstance(self.spec.columns[column], Scalar) else len
        for index, record in records(source, 0, len(source), column):
            lengths[index] = 0 if record is None else measure(record[column])
            progress.found(index + 1)
        return np.argsort(lengths, kind="stable")
