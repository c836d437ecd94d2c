"""torchvision, where it is installed: what ops are compared with."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch

from tests.support.complete import missing


def torchvision(name: str) -> Any:
    """Return a module of torchvision, such as ``transforms.v2``; skip the test where it is not installed."""
    # The wheel beside a CPU build of torch has no compiled operators; its import wants two of them to exist.
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            with contextlib.suppress(RuntimeError):
                torch.library.define(f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor")
    try:
        return importlib.import_module(f"torchvision.{name}")
    except ImportError as error:
        missing(f"no torchvision: {error}")
