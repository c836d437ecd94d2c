"""``prepserver demo``: several real training processes on one shared stream, then each on its own DataLoader."""

from __future__ import annotations

from prepserver.demo.run import run_demo

__all__ = ["run_demo"]
