"""Ops on batches: what they draw follows from the rows alone; what they compute is torchvision's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import prepclient
from prepclient import (
    ColorJitter,
    CutMix,
    InvalidSpec,
    MixUp,
    Normalize,
    Only,
    PrepClient,
    RandAugment,
    RandomChoice,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    SyntheticImages,
    ToDtype,
    ToLayout,
)
from prepclient.batchop import FIRST, FloatOp, RowDraws
from prepclient.batchops import BatchOps
from prepclient.device_ops import DEVICE_OPS
from prepclient.device_ops._mixing import beta
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import OPS
from prepserver.pipeline.random_words import SampleKey
from prepserver.telemetry import slow_rows
from prepserver.transform.stage import Draws
from tests.support.device_client import DeviceClient
from tests.support.oracle import torchvision

SOURCE = SyntheticImages(20, size=40)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MIXED = [
    RandAugment(interpolation="bilinear", fill=9), ColorJitter(0.4, 0.4, 0.4, 0.1),
    RandomErasing(0.7, value=(1, 2, 3)), RandomChoice([MixUp(1000, 0.4), CutMix(1000)])
]  # fmt: skip
CPU = torch.device("cpu")
UINT8 = Image((11, 13))
CLASSES = 1000
"""Of the source."""


def client(*, of: Callable[..., PrepClient] = PrepClient, **options: Any) -> PrepClient:
    given = {"batch_size": 6, "shuffle": True, "seed": 3, "inline": True, "fields": "dict", "device_ops": MIXED}
    return of(SOURCE, [RandomResizedCrop(16)], **{**given, **options})


def batches(epochs: int = 1, **options: Any) -> list[dict[str, Any]]:
    with client(**options) as job:
        return [batch for _ in range(epochs) for batch in job]


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def drawn_by(op: Op, image: Image = UINT8, rows: int = 500) -> torch.Tensor:
    """What an op draws for rows of one batch."""
    parts = BatchOps([op], image, CPU).draw(7, [0] * rows, list(range(rows)), 0)
    return torch.from_numpy(parts[0])


def applied(op: Op, images: torch.Tensor, drawn: Any, image: Image) -> torch.Tensor:
    step = BatchOps([op], image, CPU).steps[0]
    assert isinstance(step, FloatOp)
    return step.apply(images, torch.as_tensor(drawn, dtype=torch.float32))


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    return len(a) == len(b) and all(torch.equal(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x)


def paired(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for name in a:
        views = isinstance(a[name], tuple)
        found += list(zip(a[name], b[name], strict=True)) if views else [(a[name], b[name])]
    return found


# -- members ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", DEVICE_OPS, ids=lambda op: op.__name__)
def test_every_op_on_batches_lies_in_its_file_and_is_exported(op: type[Op]) -> None:
    how = DEVICE_OPS[op].__module__.rpartition(".")[2]
    assert how == op.__module__.rpartition(".")[2]
    assert vars(prepclient).get(op.__name__) is op, "export it in client/prepclient/__init__.py"
    if op not in OPS.values():
        said = inspect.getdoc(op) or ""
        assert [name for name in inspect.signature(op).parameters if f"{name}:" not in said] == []


# -- what is drawn ------------------------------------------------------------------------------------


def test_a_row_draws_the_numbers_that_a_worker_would_draw() -> None:
    rows = RowDraws(5, [0, 1], [7, 8], FIRST + 2, 1)
    for n, (pass_, index) in enumerate([(0, 7), (1, 8)]):
        draws = Draws(SampleKey(5, pass_, index), FIRST + 2, 1)
        blocks = [rows.uniform(block)[n] for block in (0, 1)]
        assert np.concatenate(blocks).tolist() == [draws.uniform() for _ in range(16)]
    assert rows.uniform(1, [1]).tolist() == rows.uniform(1)[1:].tolist()


def test_a_row_draws_the_same_in_any_batch() -> None:
    whole = {int(i): x for b in batches(device_ops=MIXED[:-1]) for i, x in zip(b["index"], b["image"], strict=True)}
    parts = batches(device_ops=MIXED[:-1], batch_size=5)
    assert all(torch.equal(x, whole[int(i)]) for b in parts for i, x in zip(b["index"], b["image"], strict=True))


def test_equal_batches_after_a_resume_or_not_by_another_seed() -> None:
    expected = batches(2)
    assert same(batches(2), expected)
    with client() as job:
        got = [next(iter(job))]
        state = job.state_dict()
    assert "device_ops" in state
    with client() as job:
        job.load_state_dict(state)
        assert same(got + [batch for _ in range(2) for batch in job], expected)
    with client(device_ops=[]) as plain:
        assert plain.spec.digest == client().spec.digest
        seeds = [batches(seed=seed, device_ops=[MixUp(CLASSES)])[0]["label"] for seed in (3, 4)]
        assert not torch.equal(*seeds)


def test_epochs_draw_anew() -> None:
    first, second = ({int(i): x for b in batches(2, shuffle=False, device_ops=[RandomErasing(1)])[part]
                      for i, x in zip(b["index"], b["image"], strict=True)}
                     for part in (slice(0, 4), slice(4, 8)))  # fmt: skip
    plain = {int(i): x for b in batches(2, shuffle=False, device_ops=[])[4:] for i, x in
             zip(b["index"], b["image"], strict=True)}  # fmt: skip
    assert first.keys() == second.keys() == plain.keys()
    # The crops differ, too; erased pixels are 0.
    assert any(not torch.equal(first[i] == 0, second[i] == 0) for i in first)
    assert all(((second[i] == 0).sum() >= (plain[i] == 0).sum()) for i in plain)


def test_a_state_of_other_ops_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with client() as job, client(device_ops=MIXED[:1]) as other, client(device_ops=[]) as plain:
        states = [each.state_dict() for each in (job, other, plain)]
        assert ["device_ops" in state for state in states] == [True, True, False]
        with caplog.at_level(logging.WARNING, "prepclient"):
            job.load_state_dict(states[0])
            assert caplog.text == ""
            for state in states[1:]:
                job.load_state_dict(state)
                assert "taken with other device_ops" in caplog.text
                caplog.clear()


def test_the_weights_of_mixup_are_of_the_beta_distribution() -> None:
    for alpha in (0.2, 1.0, 3.0):
        numbers = np.random.default_rng(1).random((4000, 2)).tolist()
        drawn = np.array([beta(alpha, *pair) for pair in numbers])
        assert ((drawn >= 0) & (drawn <= 1)).all()
        assert drawn.mean() == pytest.approx(0.5, abs=0.03)
        assert drawn.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
    assert beta(1e-6, 0.0, 0.0) == 0.5  # the mean, where the formula would divide 0 by 0
    assert beta(1e-6, 0.5, 0.0) == 1.0


def test_erased_rectangles_are_torchvisions() -> None:
    op = RandomErasing(0.5, (0.1, 0.3), (0.5, 2))
    boxes = drawn_by(op, Image((40, 60)))
    top, left, bottom, right = boxes.unbind(1)
    erased = bottom > top
    assert 200 < int(erased.sum()) < 300
    assert bool((boxes == boxes.round()).all())
    assert bool(((top >= 0) & (left >= 0) & (bottom <= 40) & (right <= 60))[erased].all())
    area, ratio = (bottom - top) * (right - left) / 2400, (bottom - top) / (right - left)
    assert 0.09 < float(area[erased].min()) < 0.13
    assert 0.27 < float(area[erased].max()) < 0.31
    assert float(ratio[erased].min()) < 0.6
    assert float(ratio[erased].max()) > 1.7
    # Rectangles that do not fit are drawn again, a few times.
    assert 0.5 < float((drawn_by(RandomErasing(1, (0.6, 1), (1, 1)), Image((40, 60)))[:, 2] > 0).float().mean()) < 1


# -- what is computed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_mixing_is_torchvisions(weight: float) -> None:
    v2 = torchvision("transforms.v2")
    images, labels = noise(4, 3, 11, 13), torch.tensor([0, 4, 2, 2])
    theirs = v2.MixUp(num_classes=5)
    theirs.make_params = lambda _inputs: {"lam": weight}
    got = applied(MixUp(5), images, [[weight, weight, 0, 0, 0, 0]] * 4, UINT8)
    want, soft = theirs(images, labels)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    ops = BatchOps([MixUp(5)], UINT8, CPU).soft
    assert ops is not None
    assert torch.equal(ops(labels, torch.full((4, 6), weight)), soft)


def test_cutting_is_torchvisions() -> None:
    v2 = torchvision("transforms.v2")
    images, labels = noise(4, 3, 11, 13), torch.tensor([0, 4, 2, 2])
    drawn = BatchOps([CutMix(5)], UINT8, CPU).draw(1, [0] * 4, [9, 8, 7, 6], 0)[0]
    own, outside, top, left, bottom, right = drawn[0].tolist()
    assert outside == 1.0
    assert own == pytest.approx(1 - (bottom - top) * (right - left) / (11 * 13))
    theirs = v2.CutMix(num_classes=5)
    theirs.make_params = lambda _inputs: {
        "box": tuple(map(int, (left, top, right, bottom))), "lam_adjusted": float(np.float32(own))
    }  # fmt: skip
    want, soft = theirs(images, labels)
    assert not torch.equal(want, images)
    assert torch.equal(applied(CutMix(5), images, drawn, UINT8), want)
    ops = BatchOps([CutMix(5)], UINT8, CPU).soft
    assert ops is not None
    torch.testing.assert_close(ops(labels, torch.tensor(drawn, dtype=torch.float32)), soft, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("op", "name", "factors"),
    [
        (ColorJitter(brightness=0.5), "adjust_brightness", (0.6, 1.0, 1.4)),
        (ColorJitter(contrast=0.5), "adjust_contrast", (0.6, 1.0, 1.4)),
        (ColorJitter(saturation=0.5), "adjust_saturation", (0.6, 1.0, 1.4)),
        (ColorJitter(hue=0.5), "adjust_hue", (-0.4, 0.0, 0.3)),
    ],
)
def test_colours_are_torchvisions_of_floats(op: ColorJitter, name: str, factors: tuple[float, ...]) -> None:
    function = getattr(torchvision("transforms.v2.functional"), name)
    images = noise(3, 3, 11, 13)
    images[:, :, :4] = images[:, :1, :4]  # grey pixels, too
    got = applied(op, images * 255, torch.tensor(factors).reshape(3, 1).expand(3, 4), UINT8)
    want = torch.stack([function(image, factor) for image, factor in zip(images, factors, strict=True)])
    torch.testing.assert_close(got / 255, want, rtol=0, atol=2e-6)


def test_colours_of_grey_images_have_no_hue() -> None:
    grey = Image((11, 13), channels=1)
    images = noise(2, 1, 11, 13) * 255
    factors = torch.tensor([[1.0, 1.0, 0.2, 0.3]]).expand(2, 4)
    assert torch.equal(applied(ColorJitter(0.1, 0.1, 0.9, 0.5), images, factors, grey), images)


def test_a_list_of_ops_is_what_its_short_hands_say() -> None:
    longer = batches(device_ops=[*MIXED, ToDtype("float32", scale=True), Normalize(MEAN, STD)])
    shorter = batches(normalize=(MEAN, STD))
    assert same(longer, shorter)
    assert shorter[0]["image"].dtype == torch.float32
    assert shorter[0]["label"].shape == (6, CLASSES)
    assert shorter[0]["label"].sum(1).tolist() == pytest.approx([1.0] * 6)
    plain = batches(device_ops=[ToDtype(torch.float16, scale=True), ToLayout("CHW")])
    assert same(plain, batches(device_ops=[], dtype=torch.float16, memory_format=torch.contiguous_format))
    assert plain[0]["image"].is_contiguous()
    seen = batches(device_ops=[ToLayout("HWC")], zero_copy=True)[0]["image"]
    assert seen.shape == (6, 16, 16, 3)
    assert torch.equal(seen, batches(device_ops=[])[0]["image"].permute(0, 2, 3, 1))


def test_bytes_stay_bytes_and_values_are_of_their_place() -> None:
    got = batches(device_ops=[RandomErasing(1, value=9)])[0]["image"]
    assert got.dtype == torch.uint8
    assert bool((got == 9).any(dim=(1, 2, 3)).all())
    floats = batches(device_ops=[ToDtype("float32", scale=True), Normalize(MEAN, STD), RandomErasing(1, value=9)])
    assert bool((floats[0]["image"] == 9.0).any(dim=(1, 2, 3)).all())
    later = batches(device_ops=[ToDtype("float32"), RandomErasing(1, value=9), Normalize((9.0,), (2.0,))])
    assert bool((later[0]["image"] == 0.0).any(dim=(1, 2, 3)).all())


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("views", [1, 2])
def test_ops_give_the_same_on_a_device_and_on_the_host(views: int, is_late: bool) -> None:
    """Also where the device begins only when the host has gone on to later batches."""
    expected = batches(2, normalize=(MEAN, STD), views=views)
    with client(of=DeviceClient, normalize=(MEAN, STD), views=views) as job:
        assert isinstance(job, DeviceClient)
        got = []
        for batch in (batch for _ in range(2) for batch in job):
            if not is_late:
                job.fake.finish_all()
            got.append(batch)
        job.fake.finish_all()
    assert [batch.keys() for batch in got] == [batch.keys() for batch in expected]
    for have, want in ((have, want) for a, b in zip(got, expected, strict=True) for have, want in paired(a, b)):
        assert torch.equal(have, want)
        assert have.stride() == want.stride()


def test_views_draw_anew_but_are_mixed_alike() -> None:
    first, second = batches(views=2, device_ops=[RandomErasing(1, value=0)])[0]["image"]
    assert not torch.equal(first == 0, second == 0)
    one, two = batches(views=2, device_ops=[MixUp(CLASSES)], dtype=torch.float32)[0]["image"]
    a, b = batches(views=2, device_ops=[], dtype=torch.float32)[0]["image"]
    label = batches(views=2, device_ops=[MixUp(CLASSES)])[0]["label"]
    assert label.shape == (6, CLASSES)
    own = (one - a.roll(1, 0)).abs().sum() / (a - a.roll(1, 0)).abs().sum()
    torch.testing.assert_close(two, b.roll(1, 0) * (1 - own) + b * own, rtol=0, atol=1e-3)


def test_torch_can_trace_all_ops_on_floats_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """One before `RandAugment` and one after it. Inductor takes half a minute here; tests/gpu has it."""
    traced: list[int] = []

    def backend(graph: torch.fx.GraphModule, _examples: Any) -> Any:
        traced.append(len(graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    ops = [MixUp(CLASSES), *MIXED, ToDtype("float32", scale=True), Normalize(MEAN, STD)]
    steps = BatchOps(ops, Image((16, 16)), CPU)
    for n in (6, 4):  # a short last batch is no other graph
        rows = (noise(n, 16, 16, 3) * 256).to(torch.uint8).permute(0, 3, 1, 2)
        drawn = torch.from_numpy(np.concatenate(steps.draw(1, [0] * n, list(range(n)), 0), 1, dtype=np.float32))
        fused, apart = torch.empty(n, 3, 16, 16), torch.empty(n, 3, 16, 16)
        steps.run(fused, rows, drawn, drawn, fused=True)
        steps.run(apart, rows, drawn, drawn, fused=False)
        torch.testing.assert_close(fused, apart, rtol=0, atol=1e-5)
        assert not vars(fused)  # torch's marks on it would make the user's own compiled model dynamic
    assert len(traced) == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("no compiler\nand many lines", "no compiler"),
        ("backend='inductor' raised:\nOSError: no compiler\n\nSet", "backend='inductor' raised: OSError: no compiler"),
    ],
    ids=["plain", "wrapped"],
)
def test_ops_run_one_by_one_where_they_cannot_be_compiled(
    error: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError(error)

    ops = [RandomErasing(1, value=len(told))]  # equal ops would be those that have failed to compile before
    expected = batches(device_ops=ops)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "prepclient"):
        patch.setattr(torch, "compile", no_compiler)
        assert same(batches(device_ops=ops, compile=True), expected)
    (said,) = [record.message for record in caplog.records if record.name == "prepclient"]
    assert said.endswith(f"they run op by op: RuntimeError: {told}")


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ([Resize(8)], r"device_ops\[0\] = Resize.* cannot be done on a batch: put it into ops, or choose among"),
        ([ToLayout("CHW"), MixUp(5)], r"device_ops\[0\] = ToLayout"),
        ([MixUp], "cannot be done on a batch"),
        (5, "device_ops = 5"),
        ([RandomErasing(value="random")], r"device_ops\[0\].value = 'random': draws a number for each pixel"),
        ([ToDtype("float32"), ColorJitter(0.5)], r"device_ops\[1\].op = 'ColorJitter': works on uint8"),
        ([ToDtype("float32"), RandAugment()], r"device_ops\[1\].op = 'RandAugment': works on uint8: put it before"),
        ([RandAugment(fill=(1, 2, 300))], r"device_ops\[0\].fill .*whole numbers from 0 to 255"),
        ([Normalize(MEAN, STD)], r"device_ops\[0\].mean .*put ToDtype"),
        ([MixUp(5, labels="other")], r"device_ops\[0\].labels = 'other': is no column of labels"),
        ([RandomChoice([RandomErasing()])], r"device_ops\[0\].transforms .*may choose among MixUp and CutMix"),
        ([MixUp(5), CutMix(6)], "num_classes .*need the same num_classes"),
    ],
)
def test_what_batches_cannot_have_is_refused_at_once(ops: Any, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        client(device_ops=ops)


def test_an_op_on_batches_is_none_of_a_pipeline() -> None:
    for op in (MixUp(5), RandomChoice([CutMix(5)]), Only("image", MixUp(5))):
        with pytest.raises(InvalidSpec, match=r"(MixUp|CutMix) needs a whole batch: put it into device_ops="):
            PrepClient(SOURCE, [RandomResizedCrop(16), op])


def test_ones_own_kind_of_op_is_no_op() -> None:
    own = type("Own", (RandomResizedCrop,), {})
    with pytest.raises(InvalidSpec, match="is not an op: apply it to the batches, or choose among"):
        PrepClient(SOURCE, [own(16)])


def test_masks_cannot_be_mixed_and_follow_no_image(tmp_path: Any) -> None:
    source = prepclient.ImageFolder(str(tmp_path), masks=str(tmp_path))
    with pytest.raises(InvalidSpec, match="mixes samples of one image and a label; a sample has image, mask, label"):
        PrepClient(source, [RandomResizedCrop(16)], device_ops=[CutMix(3)])
    with pytest.raises(InvalidSpec, match="moves images, and on a batch mask would not follow: put it into ops"):
        PrepClient(source, [RandomResizedCrop(16)], device_ops=[RandAugment()])


def test_a_label_that_is_no_class_is_named() -> None:
    with pytest.raises(InvalidSpec, match=r"num_classes = 2: a batch has the label \d+ in 'label'"):
        batches(device_ops=[MixUp(2)])


def test_a_row_without_a_sample_has_no_class() -> None:
    soft = BatchOps([MixUp(3)], UINT8, CPU).soft
    assert soft is not None
    assert soft(torch.tensor([-1, 2]), torch.ones(2, 6)).tolist() == [[0, 0, 0], [0, 0, 1]]


def test_a_verdict_sends_only_such_ops_to_the_gpu() -> None:
    both = {op.__name__ for op in DEVICE_OPS} & OPS.keys()
    said = "name it in _ON_DEVICE of prepserver/telemetry/slow_rows.py"
    assert both - {"RandomChoice"} | {"ToLayout"} == slow_rows._ON_DEVICE, said
