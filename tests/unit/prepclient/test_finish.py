"""The finishing step against torchvision's documented arithmetic, on the CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prepclient.finish import Finish, Finisher, looks_of
from prepclient.rowlook import Layout, RowLook
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array
from prepserver.pipeline.ops import RandomResizedCrop, ToLayout
from prepserver.pipeline.pipeline import Pipeline
from tests.support.finishing import finished
from tests.support.server import environment
from tests.support.torch_threads import interrupt_leaves_threads, interrupted
from tests.support.waiting import PATIENCE_S

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CPU = torch.device("cpu")


def rows(n: int, shape: tuple[int, int, int] = (6, 7, 3)) -> torch.Tensor:
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def normalized(chw: torch.Tensor) -> torch.Tensor:
    """torchvision: ToDtype(float, scale=True), then Normalize; here in double."""
    mean, std = (torch.tensor(c, dtype=torch.float64).reshape(-1, 1, 1) for c in (MEAN, STD))
    return (chw.double() / 255 - mean) / std


@pytest.mark.parametrize(
    ("dtype", "relative"),
    [(None, 0.0), (torch.float32, 0.0), (torch.float16, 2**-11), (torch.bfloat16, 2**-8)],
)
@pytest.mark.parametrize("memory_format", [None, torch.channels_last, torch.contiguous_format])
def test_normalize_is_torchvisions_within_one_rounding(
    dtype: torch.dtype | None, relative: float, memory_format: torch.memory_format | None
) -> None:
    images = rows(5)
    finish = Finish(normalize=(MEAN, STD), dtype=dtype, memory_format=memory_format)
    got = finished(Finisher(finish, RowLook((6, 7, 3)), CPU), [images])
    assert got.dtype == (dtype or torch.float32)
    assert got.is_contiguous(memory_format=memory_format or torch.channels_last)
    torch.testing.assert_close(got.double(), normalized(images.permute(0, 3, 1, 2)), rtol=relative, atol=1e-6)


def test_a_float_type_without_normalize_scales_to_one() -> None:
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1)
    look = RowLook((16, 16, 1))
    got = finished(Finisher(Finish(dtype=torch.float32), look, CPU), [every])
    # torchvision's to_dtype multiplies by the reciprocal too.
    assert torch.equal(got.reshape(-1), torch.arange(256).to(torch.float32).mul_(1.0 / 255))
    half = finished(Finisher(Finish(dtype=torch.float16), look, CPU), [every])
    assert torch.equal(half, got.half())


def test_stored_floats_are_normalised_in_float32_without_255() -> None:
    images = (rows(3).permute(0, 3, 1, 2) / 255).half().contiguous()
    look = RowLook((3, 6, 7), dtype=torch.float16, stored="CHW", seen="CHW")
    got = finished(Finisher(Finish(normalize=(MEAN, STD)), look, CPU), [images])
    want = (images.double() - torch.tensor(MEAN).double().reshape(3, 1, 1)) / torch.tensor(STD).reshape(3, 1, 1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)


def test_float16_is_refused_for_values_beyond_it() -> None:
    look = RowLook((6, 7, 3), dtype=torch.uint16, top=65535.0)
    with pytest.raises(SpecError, match="ends at 65504, and the images go to 65535"):
        Finisher(Finish(dtype=torch.float16), look, CPU)
    white = torch.full((2, 6, 7, 3), 65535, dtype=torch.uint16)
    normalize = ([60000.0], [5535.0])
    assert (finished(Finisher(Finish(normalize=normalize, dtype=torch.float16), look, CPU), [white]) == 1.0).all()


def test_one_mean_and_std_serve_every_channel() -> None:
    got = finished(Finisher(Finish(normalize=([0.5], [0.25])), RowLook((6, 7, 3)), CPU), [rows(2)])
    torch.testing.assert_close(got, (rows(2).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("stored", "seen"), [("HWC", "CHW"), ("HWC", "HWC"), ("CHW", "CHW"), ("CHW", "HWC")])
def test_the_channel_is_found_in_every_layout(stored: Layout, seen: Layout) -> None:
    hwc = rows(4)
    given_rows = hwc if stored == "HWC" else hwc.permute(0, 3, 1, 2).contiguous()
    look = RowLook((6, 7, 3) if stored == "HWC" else (3, 6, 7), stored=stored, seen=seen)
    assert look.channels == 3
    got = finished(Finisher(Finish(normalize=(MEAN, STD)), look, CPU), [given_rows])
    want = normalized(hwc.permute(0, 3, 1, 2))
    torch.testing.assert_close(got.double(), want if seen == "CHW" else want.permute(0, 2, 3, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("layout", "stored", "seen"), [(None, "HWC", "CHW"), ("HWC", "HWC", "HWC"), ("CHW", "CHW", "CHW")]
)
def test_a_pipeline_says_how_its_rows_look(layout: Layout | None, stored: Layout, seen: Layout) -> None:
    ops = [RandomResizedCrop((4, 5)), *([ToLayout(layout)] if layout else [])]
    look = looks_of(Pipeline.from_ops(ops), Finish())[0]
    assert look == RowLook((3, 4, 5) if stored == "CHW" else (4, 5, 3), torch.uint8, stored, seen)


@pytest.mark.parametrize(
    "given", [{"dtype": torch.float16}, {"memory_format": torch.channels_last}, {"normalize": (MEAN, STD)}]
)
def test_what_is_for_images_is_refused_without_an_image(given: dict[str, Any]) -> None:
    pipeline = Pipeline.from_ops([], columns={"x": Array((4,), "float32")})
    with pytest.raises(SpecError, match=f"{next(iter(given))} = .*: is for images, and the rows have none"):
        looks_of(pipeline, Finish(**given))


@pytest.mark.parametrize("memory_format", [None, torch.channels_last, torch.contiguous_format])
def test_a_result_can_be_laid_in_memory_that_is_there(memory_format: torch.memory_format | None) -> None:
    finisher = Finisher(Finish(dtype=torch.float16, memory_format=memory_format), RowLook((6, 7, 3)), CPU)
    block = torch.zeros(4096, dtype=torch.uint8)
    out = finisher.empty(3, block)
    finisher.fill(out, [rows(3)])
    assert finisher.nbytes(3) == 3 * 6 * 7 * 3 * 2
    assert out.data_ptr() == block.data_ptr()
    assert torch.equal(out, finished(finisher, [rows(3)]))
    assert out.stride() == finished(finisher, [rows(3)]).stride()


@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=3), wanted=st.sampled_from([None, torch.float16]))
def test_a_batch_in_parts_is_the_batch_in_one(cuts: list[int], wanted: torch.dtype | None) -> None:
    images = rows(sum(cuts))
    finisher = Finisher(Finish(dtype=wanted), RowLook((6, 7, 3)), CPU)
    whole, pieces = finished(finisher, [images]), finished(finisher, torch.split(images, cuts))
    assert torch.equal(whole, pieces)
    assert whole.stride() == pieces.stride()


def test_nothing_asked_for_is_a_fresh_copy_with_the_stored_order() -> None:
    images = rows(3)
    finisher = Finisher(Finish(), RowLook((6, 7, 3)), CPU)
    got = finished(finisher, [images])
    seen = images.permute(0, 3, 1, 2)
    assert finisher.is_plain
    assert torch.equal(got, seen)
    assert got.stride() == seen.stride()
    assert got.data_ptr() != images.data_ptr()


@pytest.mark.parametrize(
    ("finish", "plain"),
    [
        (Finish(memory_format=torch.channels_last), True),
        (Finish(dtype=torch.uint8), True),
        (Finish(memory_format=torch.contiguous_format), False),
        (Finish(dtype=torch.float16), False),
        (Finish(normalize=((0,), (1,))), False),
    ],
)
def test_plain_means_that_the_rows_could_be_lent_as_they_are(finish: Finish, plain: bool) -> None:
    assert Finisher(finish, RowLook((6, 7, 3)), CPU).is_plain is plain


def test_default_dtype_and_inference_mode_change_nothing() -> None:
    want = finished(Finisher(Finish(normalize=(MEAN, STD)), RowLook((6, 7, 3)), CPU), [rows(2)])
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            got = finished(Finisher(Finish(normalize=(MEAN, STD)), RowLook((6, 7, 3)), CPU), [rows(2)])
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.dtype == torch.float32
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"normalize": 3}, "normalize"),
        ({"normalize": ((0.5,), (0.5, 0.5))}, "normalize"),
        ({"normalize": ((), ())}, "normalize"),
        ({"normalize": ((0.5,), (0.0,))}, "normalize"),
        ({"normalize": ((float("nan"),), (1.0,))}, "normalize"),
        ({"dtype": torch.int32}, "dtype"),
        ({"normalize": ((0.5,), (0.5,)), "dtype": torch.uint8}, "dtype"),
        ({"memory_format": torch.channels_last_3d}, "memory_format"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_field(wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        Finish(**wanted)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("finish", "look", "field"),
    [
        (Finish(normalize=((0.5, 0.5), (1, 1))), RowLook((6, 7, 3)), "normalize"),
        (Finish(dtype=torch.uint8), RowLook((6, 7, 3), dtype=torch.float32), "dtype"),
        (Finish(memory_format=torch.channels_last), RowLook((6, 7, 3), seen="HWC"), "memory_format"),
    ],
)
def test_what_does_not_fit_the_rows_is_refused_with_its_field(finish: Finish, look: RowLook, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        Finisher(finish, look, CPU)
    assert refused.value.field == field


@pytest.mark.parametrize("side", [6, 300, 600])  # many images in a core's cache at once, two, none
@pytest.mark.parametrize(("stored", "seen"), [("HWC", "CHW"), ("HWC", "HWC"), ("CHW", "CHW"), ("CHW", "HWC")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("normalize", [(MEAN, STD), ((0.5,), (0.25,)), None])
def test_images_in_small_groups_are_bitwise_the_whole_batch(
    side: int, stored: Layout, seen: Layout, dtype: torch.dtype, normalize: Any
) -> None:
    shape = (side, side, 3) if stored == "HWC" else (3, side, side)
    look = RowLook(shape, stored=stored, seen=seen)
    images = rows(5, shape)
    got = finished(Finisher(Finish(normalize=normalize, dtype=dtype), look, CPU), [images[:3], images[3:]])
    mean, std = normalize or ((0.0,), (1.0,))
    axis = (-1, 1, 1) if seen == "CHW" else (-1,)
    scale = torch.tensor([1.0 / (255.0 * s) for s in std]).reshape(axis)
    bias = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).reshape(axis)
    values = look.view(images).float()
    want = values * scale if normalize is None else torch.addcmul(bias, values, scale)
    assert torch.equal(got, want.to(dtype))
    assert got.stride() == look.view(images).stride()


_LARGE = """
import os, sys
import numpy as np, torch
from prepclient.finish import Finish, Finisher
from prepclient.rowlook import RowLook

torch.set_num_threads(4)
rows = torch.from_numpy(np.zeros((64, 128, 128, 3), np.uint8))  # torch would fill such a tensor with all its threads
before = len(os.listdir("/proc/self/task"))
for finish in (Finish(), Finish(normalize=((0.5,), (0.5,))), Finish(memory_format=torch.contiguous_format)):
    finisher = Finisher(finish, RowLook((128, 128, 3)), torch.device("cpu"))
    finisher.fill(finisher.empty(64), [rows])
print(len(os.listdir("/proc/self/task")) - before, torch.get_num_threads())
rows.to(torch.float32)
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_large_batches_are_made_by_one_thread() -> None:
    """In a process of its own, in which torch has not started its threads."""
    done = subprocess.run(
        [sys.executable, "-c", _LARGE],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    threads, torchs_threads, threads_of_torch_alone = map(int, done.stdout.split())
    assert (threads, torchs_threads) == (0, 4)
    assert threads_of_torch_alone > 0


def test_an_interrupt_in_mid_batch_leaves_torch_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Finisher, "_compute", interrupted)
    with interrupt_leaves_threads():
        finished(Finisher(Finish(normalize=(MEAN, STD)), RowLook((6, 7, 3)), CPU), [rows(5)])
