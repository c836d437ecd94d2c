"""A pipeline of all ops that draw, through a real daemon: the same bytes as inline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from prepclient import (
    CenterCrop,
    GaussianNoise,
    ImageFolder,
    PrepClient,
    RandomApply,
    RandomChoice,
    RandomOrder,
    RandomResizedCrop,
    ToDtype,
)
from prepserver.pipeline.ops import Op
from tests.support.augmentations import OTHER_SIZE, SAME_SIZE
from tests.support.server import Server

pytestmark = pytest.mark.integration

OPS: list[Op] = [
    RandomApply([RandomResizedCrop(40)]), RandomChoice(OTHER_SIZE), RandomOrder(SAME_SIZE), CenterCrop(24),
    ToDtype("float32", scale=True), GaussianNoise(),
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    root = tmp_path_factory.mktemp("augmented")
    rng = np.random.default_rng(1)
    for number in range(12):
        size = (40 + 8 * (number % 3), 56)
        for folder, kind, shape in (("images", "jpg", (*size, 3)), ("masks", "png", size)):
            path = root / folder / "a" / f"{number:03}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Picture.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    return ImageFolder(root / "images", masks=root / "masks")


def test_a_daemon_makes_the_rows_that_are_made_inline(server: Server, source: ImageFolder) -> None:
    spec: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "views": 2, "fields": None}
    made: list[list[Any]] = []
    for where in ({"inline": True}, {"runtime_dir": server.runtime_dir}):
        with PrepClient(source, OPS, **{k: v for k, v in {**spec, **where}.items() if v is not None}) as client:
            made.append([[part.clone() for part in _flat(batch)] for batch in client])
    for one, other in zip(*made, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _flat(batch: Any) -> list[torch.Tensor]:
    return [each for part in batch for each in (_flat(part) if isinstance(part, tuple | list) else [part])]
