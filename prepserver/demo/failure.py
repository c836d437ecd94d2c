"""What ends the demo early."""

from __future__ import annotations


class DemoFailure(RuntimeError):
    """The demo cannot go on; the text says why."""
