"""How `Split` is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.sources.split import Split
from prepserver.source.composed import PickingReader, drawn
from prepserver.source.errors import SourceError
from prepserver.source.progress import Progress
from prepserver.source.samples import Source


class SplitReader(PickingReader):
    spec: Split

    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        n, k, fold = len(source), self.spec.k, self.spec.fold
        if n < k:
            raise SourceError(f"{self.spec.location} has {n} samples, too few for k = {k}")
        is_in = np.zeros(n, bool)
        is_in[drawn(n, self.spec.seed)[fold * n // k : (fold + 1) * n // k]] = True
        return np.flatnonzero(~is_in if self.spec.train else is_in)
