"""How `Subset` is read."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.subset import Subset
from prepserver.source.composed import PickingReader
from prepserver.source.draw import drawn
from prepserver.source.errors import SourceError, unusable
from prepserver.source.progress import Progress
from prepserver.source.roots import Roots
from prepserver.source.samples import Source
from prepserver.source.storage import open_file


class SubsetReader(PickingReader):
    kind = Subset
    spec: Subset

    def pick(self, source: Source, extra: bytes, progress: Progress) -> npt.NDArray[Any]:
        n = len(source)
        if self.spec.fraction is not None:
            return np.sort(drawn(n, self.spec.seed)[: max(1, round(self.spec.fraction * n))])
        indices = np.array(self.spec.indices) if self.spec.file is None else self._loaded(extra)
        outside = np.flatnonzero((indices < 0) | (indices >= n))
        if len(outside):
            index = indices[outside[0]]
            raise SourceError(
                f"{self.spec.place}: index {index}, at place {outside[0]} of {len(indices)}, is not in 0 to {n - 1}"
            )
        return indices

    def _read(self, roots: Roots | None) -> bytes:
        if self.spec.file is None:
            return b""
        try:
            with contextlib.closing(open_file(roots, "the file of indices", self.spec.file)) as file:
                return bytes(file.whole())
        except OSError as error:
            raise unusable("the file of indices", self.spec.file, error) from error

    def _loaded(self, content: bytes) -> npt.NDArray[Any]:
        try:
            indices = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        except Exception as error:  # numpy parses the header as Python, and lets errors of that through
            raise SourceError(f"{self.spec.file} is no .npy file: {error}; write it with numpy.save") from error
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not indices.size:
            found = f"{indices.dtype} of shape {indices.shape}"
            raise SourceError(f"{self.spec.file} holds {found}; it must be a list of integers, not empty")
        return indices
