"""Who is compared, all behind one interface: what a job needs to iterate over epochs of batches.

A contender is a module here with ``prepare(config)`` (imports, untimed) and ``open_loader(config)`` (timed as
part of the first batch). The loader is iterated once per epoch; an item is ``(images, labels)`` with images a
uint8 tensor of 224x224 RGB. ``config`` is plain data: ``list`` (a list file), ``batch``, ``workers``, ``seed``
and ``runtime_dir``; for prepserver alone also ``size``, ``lag`` and ``join_wait_s``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Protocol

NAMES = {
    "prepserver": "prepserver",
    "torch_pillow": "DataLoader, Pillow",
    "torch_simplejpeg": "DataLoader, simplejpeg",
    "kernel": "kernels alone",
}
"""Module -> name in tables."""

SIZE = 224
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class Contender(Protocol):
    def prepare(self, config: dict[str, Any]) -> None: ...

    def open_loader(self, config: dict[str, Any]) -> Iterable[Any]: ...


def load(name: str) -> Contender:
    module: Any = importlib.import_module(f"contenders.{name}")
    return module  # type: ignore[no-any-return]
