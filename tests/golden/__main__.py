"""``python -m tests.golden``: takes all digests anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.golden.rows import digests, load, save

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        save(digests(load(), Path(folder)))
