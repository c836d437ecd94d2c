"""bench/ is a folder of scripts, not a package: its modules are found as they find each other."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"

sys.path.append(str(BENCH))
