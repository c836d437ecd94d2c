"""No loader at all: the same batch again and again, which is on the device already. What a training step can reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch

from bench.harness.contender import SIZE


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    images = torch.randint(0, 256, (config["batch"], SIZE, SIZE, 3), dtype=torch.uint8).to(config["device"])
    return itertools.repeat((images, torch.zeros(config["batch"], dtype=torch.int64)))
