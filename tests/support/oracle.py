"""torchvision, where it is installed: what our ops and sources are compared with."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

_schemas: list[torch.library.Library] = []


def torchvision(module: str) -> Any:
    """A module of torchvision; skips the test where that is not installed."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pytest.skip("needs torchvision")
    except RuntimeError:
        # A build for CUDA beside another torch fails at operators that nobody here uses; a schema is all it asks for.
        _schemas.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            _schemas[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return importlib.import_module(f"torchvision.{module}")
