"""Writes what packages of members look like to a type checker: ``python -m tests.stubs``.

Such a package finds its members when it is imported, which no type checker does.
"""

from __future__ import annotations

from pathlib import Path

from prepserver.pipeline import ops, sources

OPS_STUB = Path(ops.__file__).with_suffix(".pyi")
SOURCES_STUB = Path(sources.__file__).with_suffix(".pyi")


def stub_of_ops() -> str:
    """The text of `OPS_STUB`."""
    lines = [
        "# Written by `python -m tests.stubs`, which tests/unit/pipeline/test_members.py compares.",
        "from collections.abc import Mapping",
        "from typing import Any",
        "",
        "from prepserver.pipeline.op import Op as Op",
        *(f"from {op.__module__} import {name} as {name}" for name, op in ops.OPS.items()),
        "",
        "OPS: dict[str, type[Op]]",
        "",
        "def op_from_wire(wire: Mapping[str, Any]) -> Op: ...",
        "",
        "__all__ = [  # noqa: RUF022 -- in the order of their modules",
        *(f'    "{name}",' for name in ops.OPS),
        "]",
        "",
    ]
    return "\n".join(lines)


def stub_of_sources() -> str:
    """The text of `SOURCES_STUB`."""
    lines = [
        "# Written by `python -m tests.stubs`, which tests/unit/pipeline/test_members.py compares.",
        "from collections.abc import Mapping",
        "",
        "from prepserver.pipeline.source import SourceSpec as SourceSpec",
        *(f"from {kind.__module__} import {name} as {name}" for name, kind in sources.SOURCES.items()),
        "",
        "SOURCES: dict[str, type[SourceSpec]]",
        "",
        "def source_from_wire(wire: object) -> SourceSpec: ...",
        "def arrangement_of(wire: Mapping[str, object]) -> tuple[tuple[int, ...], bool]: ...",
        "def location_of(wire: Mapping[str, object]) -> str: ...",
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in sorted(sources.SOURCES)),
        "]",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    OPS_STUB.write_text(stub_of_ops())
    SOURCES_STUB.write_text(stub_of_sources())
