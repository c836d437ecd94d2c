"""A Dataset of your own: small pictures and rows of numbers from one file, read by the workers of a private daemon.

python examples/plugin_dataset.py

If a shared daemon runs, it makes the rows, and only its configuration can name plug-ins. Then begin the line with
PREPSERVER_RUNTIME_DIR=/tmp/none, or start that daemon with --plugin.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from prepclient import Plugin, PrepClient, RandomHorizontalFlip, kinds


class Measurements:
    """A map-style Dataset, as torch has it, over an .npz file. Each worker makes it once.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        found = np.load(path)
        self._pictures, self._readings, self._labels = found["pictures"], found["readings"], found["labels"]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample, which must depend on the index only."""
        return {
            "image": self._pictures[index],  # (32, 32, 3), uint8
            "reading": self._readings[index],  # (8,), float32
            "label": self._labels[index],
        }


prepserver_sources = {"measurements": Measurements}
"""What this module offers, by the names that specs use."""

COLUMNS = {"image": kinds.Image(size=(32, 32)), "reading": kinds.Array((8,), "float32"), "label": kinds.Label()}
"""What each sample holds. Client and daemon check the pipeline against it before anything is read."""


def main() -> None:
    """One epoch, each sample once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measurements.npz"
        rng = np.random.default_rng(0)
        np.savez(
            path,
            pictures=rng.integers(0, 256, (100, 32, 32, 3), np.uint8),
            readings=rng.normal(size=(100, 8)).astype(np.float32),
            labels=np.arange(100) % 10,
        )
        source = Plugin("measurements", path=str(path), columns=COLUMNS)
        train = PrepClient(
            source, [RandomHorizontalFlip()], batch_size=20, shuffle="full", workers=2, plugins="plugin_dataset"
        )
        with train:
            seen = 0
            for images, readings, labels in train:
                assert images.shape == (20, 3, 32, 32)
                assert readings.shape == (20, 8)
                seen += len(labels)
        print(f"{seen} samples")


if __name__ == "__main__":
    main()
