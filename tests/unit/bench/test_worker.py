"""The clocks around a worker's functions."""

from __future__ import annotations

from typing import Any

from bench.cases.worker_profile import _parts
from bench.harness.worker import calls


def test_every_function_to_be_clocked_is_there() -> None:
    """They are named by strings, which no type checker follows."""

    def is_there(where: Any, name: str) -> bool:
        return name in where if isinstance(where, dict) else hasattr(where, name)

    assert [name for where, name, _ in [*calls(), *_parts()] if not is_there(where, name)] == []
