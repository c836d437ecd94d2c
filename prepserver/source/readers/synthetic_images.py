"""How `SyntheticImages` are read: from a bank of pictures, drawn once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from prepserver.pipeline.sources.synthetic_images import SyntheticImages
from prepserver.source.container import Container
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source
from prepserver.source.synthetic import BANK_VERSION, SyntheticSource, draw_bank


class SyntheticImagesReader(ScanningReader):
    """SyntheticImages."""

    kind = SyntheticImages
    spec: SyntheticImages

    @property
    def key(self) -> str:
        """As `ScanningReader.key`. A bank serves any number of samples and classes."""
        what = f"SyntheticImages bank {BANK_VERSION} {self.spec.seed} {self.spec.height} {self.spec.width}"
        return hashlib.sha256(what.encode()).hexdigest()[:32]

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        """As `ScanningReader.scan`."""
        bank = draw_bank(self.spec)
        progress.finished(self.spec.n)
        return Scan({"content_digest": hashlib.sha256(bank["jpegs"]).hexdigest()}, bank, [], {})

    def is_current(self, container: Container) -> bool:
        """As `ScanningReader.is_current`: what is drawn never changes."""
        return True

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        """As `ScanningReader.read_by`."""
        return SyntheticSource(container, self.spec)

    def counts(self, meta: Mapping[str, Any]) -> tuple[int, int]:
        """As `ScanningReader.counts`."""
        return self.spec.n, self.spec.num_classes
