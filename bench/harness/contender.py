"""What a contender is: a module of `bench.peers.contenders` that gives a job its batches.

It has ``open_loader(config)``, whose time is part of the first batch. The loader is iterated once per epoch; an item is
``(images, labels)``, images a uint8 tensor or array of 64 RGB images. What the module imports is not timed, nor is
``prepare(config)``, if it has one. ``build(config)`` writes the data in a form of its own to ``config["out"]`` and may
return the bytes of all samples; ``serve(config)`` starts what serves several jobs and returns what keeps it alive.

``config`` is plain data: ``list`` (a list file), ``batch``, ``workers``, ``seed``, ``runtime_dir``, and more that the
contender's module names.
"""

from __future__ import annotations

import importlib
from typing import Any

SIZE = 224
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Of RandomResizedCrop, for every contender."""


def load(name: str) -> Any:
    """The module of a contender."""
    return importlib.import_module(f"bench.peers.contenders.{name}")


def training(config: dict[str, Any]) -> Any:
    """What a job with a model does with each batch; not imported above, because it needs torch."""
    made = importlib.import_module("bench.harness.training")
    return made.Training(config["model"], config["device"], config["batch"])
