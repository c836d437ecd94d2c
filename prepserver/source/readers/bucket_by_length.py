"""How `BucketByLength` is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.bucket_by_length import BucketByLength
from prepserver.plugins import PluginError
from prepserver.source.composed import PickingReader
from prepserver.source.errors import SampleError, unusable
from prepserver.source.progress import Progress
from prepserver.source.samples import Source
from prepserver.source.storage.remote import RemoteError

_AT_ONCE = 256
"""Samples that begin to be read together, where that is of use."""


class BucketByLengthReader(PickingReader):
    kind = BucketByLength
    spec: BucketByLength

    def pick(self, source: Source, extra: bytes, progress: Progress) -> npt.NDArray[Any]:
        lengths = np.zeros(len(source), np.uint32)
        for index in range(len(source)):
            if source.reads_ahead and index % _AT_ONCE == 0:
                source.prefetch(range(index, min(index + _AT_ONCE, len(source))))
            try:
                lengths[index] = len(source.read(index)[self.spec.column])
            except RemoteError as error:
                raise unusable("the sample", source.name(index), error) from error  # for a while, perhaps
            except (SampleError, PluginError):
                pass  # it stays in the epoch, where reading it again says what is wrong
            progress.found(index + 1)
        return np.argsort(lengths, kind="stable")
