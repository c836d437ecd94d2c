"""How `Subset` is read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.subset import Subset
from prepserver.source.composed import PickingReader, drawn
from prepserver.source.errors import SourceError
from prepserver.source.progress import Progress
from prepserver.source.samples import Source
from prepserver.source.storage import open_file


class SubsetReader(PickingReader):
    spec: Subset

    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        n = len(source)
        if self.spec.fraction is not None:
            return np.sort(drawn(n, self.spec.seed)[: max(1, round(self.spec.fraction * n))])
        indices = np.array(self.spec.indices) if self.spec.file is None else self._loaded()
        outside = np.flatnonzero((indices < 0) | (indices >= n))
        if len(outside):
            index = indices[outside[0]]
            raise SourceError(
                f"{self.spec.location}: index {index}, at place {outside[0]} of {len(indices)}, is not in 0 to {n - 1}"
            )
        return indices

    def _read(self) -> bytes:
        if self.spec.file is None:
            return b""
        with open_file(self.roots, "the file of indices", self.spec.file) as file:
            return bytes(file.whole())

    def _loaded(self) -> npt.NDArray[Any]:
        try:
            indices = np.lib.format.read_array(io.BytesIO(self._content), allow_pickle=False)
        except Exception as error:  # numpy parses the header as Python, and lets errors of that through
            raise SourceError(f"{self.spec.file} is not a .npy file: {error}; write it with numpy.save") from error
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not indices.size:
            found = f"{indices.dtype} of shape {indices.shape}"
            raise SourceError(f"{self.spec.file} holds {found}; it must be a list of integers, not empty")
        return indices
