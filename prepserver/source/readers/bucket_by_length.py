"""How `BucketByLength` is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.bucket_by_length import BucketByLength
from prepserver.source.composed import PickingReader, records
from prepserver.source.progress import Progress
from prepserver.source.samples import Source


class BucketByLengthReader(PickingReader):
    spec: BucketByLength

    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        lengths = np.zeros(len(source), np.uint32)
        for index, record in records(source, 0, len(source)):
            lengths[index] = 0 if record is None else len(record[self.spec.column])
            progress.found(index + 1)
        return np.argsort(lengths, kind="stable")
