"""How `HuggingFace` is read: as ranges of its Arrow files."""

from __future__ import annotations

from collections.abc import Callable

from prepserver.pipeline.sources.hugging_face import HuggingFace
from prepserver.source.arrow import class_names, data_files, list_arrow
from prepserver.source.ranges import Listed, RangesReader
from prepserver.source.roots import Roots


class HuggingFaceReader(RangesReader):
    kind = HuggingFace
    spec: HuggingFace

    def files(self, roots: Roots | None = None) -> list[str]:
        return data_files(self.spec.path, roots)

    def classes(self, roots: Roots | None) -> list[str]:
        return class_names(self.spec.path, self.spec.label, roots) if self.spec.label else []

    def list_file(self, path: str, roots: Roots | None, found: Callable[..., None]) -> Listed:
        return list_arrow(
            path, [str(getattr(self.spec, column)) for column in self.columns], self.spec.label, roots, found
        )
