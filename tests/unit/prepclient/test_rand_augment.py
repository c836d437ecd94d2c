"""`RandAugment` on batches: what workers make of each row, in any batch, and so what torchvision makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prepclient import RandAugment
from prepclient.batchops import BatchOps
from prepserver.pipeline.changes import ALL, SIGNED
from prepserver.pipeline.kinds import Image
from prepserver.transform.augment import augmented
from tests.support.oracle import torchvision

CPU = torch.device("cpu")


def batch(rows: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Smooth images with some grain, and some of few values, as a pipeline stores them."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width] / 20.0
    waves = [[np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0.3, 3.0, (channels, 3))] for _ in range(rows)]
    images = (128 + 90 * np.array(waves) + rng.normal(0, 9, (rows, channels, height, width))).clip(0, 255)
    images[1::5] = images[1::5] // 90 * 40
    images[2::5, 0] = 31
    return torch.from_numpy(images.astype(np.uint8)).to(memory_format=torch.channels_last)


def drawn_by(ops: BatchOps, indices: list[int], pass_: int = 1) -> torch.Tensor:
    parts = ops.draw(5, [pass_] * len(indices), indices, 0)
    return torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float32))


def made(ops: BatchOps, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(images)
    before = images.clone()
    ops.run(out, images, drawn, drawn, fused=False)
    assert torch.equal(images, before)
    return out


def decided(op: RandAugment, numbers: torch.Tensor, size: tuple[int, int]) -> list[tuple[str, float]]:
    """The changes that a row drew, with their magnitudes."""
    names = [(ALL[int(number) // 2], (1, -1)[int(number) % 2]) for number in numbers]
    assert all(sign == 1 or name in SIGNED for name, sign in names)
    return [(name, sign * op.scales.magnitude(name, op.magnitude, size)) for name, sign in names]


@settings(max_examples=25, deadline=None)
@given(
    op=st.builds(
        RandAugment, st.integers(1, 9), st.integers(0, 30), st.just(31), st.sampled_from(["nearest", "bilinear"]),
        st.integers(0, 255),
    ),
    image=st.builds(lambda size, channels: Image(size, channels), st.sampled_from([(1, 1), (2, 9), (17, 23)]),
                    st.sampled_from([1, 3])),
    rows=st.integers(1, 30), cut=st.integers(0, 30),
)  # fmt: skip
def test_each_row_is_what_a_worker_makes_in_any_batch(op: RandAugment, image: Image, rows: int, cut: int) -> None:
    assert image.size is not None
    ops = BatchOps([op], image, CPU)
    images, indices = batch(rows, image.channels, *image.size), list(range(100, 100 + rows))
    drawn = drawn_by(ops, indices)
    found = made(ops, images, drawn)
    parts = [part for part in (slice(None, cut), slice(cut, None)) if len(indices[part])]
    # Drawn and made in other batches, as after a seek.
    assert torch.equal(torch.cat([made(ops, images[part], drawn_by(ops, indices[part])) for part in parts]), found)
    for row, numbers, result in zip(images, drawn, found, strict=True):
        pixels: Any = row.permute(1, 2, 0).contiguous().numpy()
        for name, magnitude in decided(op, numbers, image.size):
            step = augmented(name, magnitude, *image.size, op.interpolation, op.fill).step
            pixels = pixels if step is None else step(pixels, None)
        assert np.array_equal(pixels, result.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_each_change_is_torchvisions(mode: str) -> None:
    """To a level; but a warp takes the nearest pixel on the border of two, blends 256ths and repeats the edge."""
    theirs = torchvision("transforms.v2").RandAugment(interpolation=mode)
    op, size = RandAugment(1, 17, interpolation=mode, fill=0), (60, 90)
    ops = BatchOps([op], Image(size), CPU)
    images = batch(300, 3, *size).clamp(1)
    drawn = drawn_by(ops, list(range(300)))
    seen = set()
    for row, numbers, result in zip(images, drawn, made(ops, images, drawn), strict=True):
        ((name, magnitude),) = decided(op, numbers, size)
        if (name, magnitude) not in seen:
            seen.add((name, magnitude))
            wanted = theirs._apply_image_or_video_transform(row, name, magnitude, theirs.interpolation, {})
            near = (result.int() - wanted.int()).abs() <= (2 if mode == "bilinear" else 1)
            warps = name[:5] in ("Shear", "Trans", "Rotat")
            assert near.float().mean() >= (0.93 if warps else 1.0), (name, magnitude, near.float().mean())
    assert len(seen) == len(ALL) + len(SIGNED)


def test_changes_and_signs_are_uniform_and_of_each_row() -> None:
    ops, rows = BatchOps([RandAugment(5)], Image((8, 8)), CPU), 4000
    drawn = drawn_by(ops, list(range(rows)))
    assert drawn.shape == (rows, 5)
    counts = torch.stack([slot.long().bincount(minlength=2 * len(ALL)) for slot in drawn.unbind(1)])
    for place, name in enumerate(ALL):
        each = counts[:, 2 * place : 2 * place + 2].float() / rows
        assert bool((each.sum(1) - 1 / len(ALL)).abs().max() < 0.02)
        assert bool((each[:, 1] == 0).all()) == (name not in SIGNED)
        assert name not in SIGNED or bool((each[:, 0] - each[:, 1]).abs().max() < 0.02)
    assert torch.unique(drawn, dim=0).shape[0] > 0.98 * rows  # slots and rows are independent
    assert torch.equal(drawn_by(ops, [9, 3]), drawn[[9, 3]])
    assert not torch.equal(drawn_by(ops, [9, 3], pass_=2), drawn[[9, 3]])


def test_no_change_is_no_change() -> None:
    ops, images = BatchOps([RandAugment(0)], Image((8, 8)), CPU), batch(3, 3, 8, 8)
    assert ops.width == 0
    assert torch.equal(made(ops, images, torch.empty(3, 0)), images)
