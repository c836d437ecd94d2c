"""The law that everything else rests on: a row is a function of spec, seed and position, and of nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings

from prepclient import (
    CenterCrop,
    ColorJitter,
    CopyPaste,
    GaussianNoise,
    Grayscale,
    Mosaic,
    Normalize,
    Pad,
    PadBoxes,
    PrepClient,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomOrder,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    SanitizeBoxes,
    ScaleJitter,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.ops import Op
from prepserver.pipeline.sources import Coco, ImageFolder
from tests.support.augmentations import OTHER_SIZE, SAME_SIZE, pipelines, whitened
from tests.support.clients import OPS, Rows, inline_rows, read, rows_of
from tests.support.detection import coco_tree
from tests.support.odd_images import listed, odd_files, odd_tree
from tests.support.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """Daemons that differ in their number of workers, and cut the stream into chunks differently."""
    with contextlib.ExitStack() as stack:
        made = [Server(workers=n, settings={"chunk_rows": rows}) for n, rows in ((1, 16), (2, 5), (7, 3))]
        for server in made:
            stack.push(server)
            server.launch()
        for server in made:
            server.wait_up()
        yield made


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return odd_tree(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Coco:
    pytest.importorskip("pycocotools")
    source = coco_tree(tmp_path_factory.mktemp("coco"), 75)
    return Coco(source.root, source.annotations, keypoints=17, masks=True)


def served_rows(server: Server, source: Any, epochs: int = 1, ops: Any = OPS, **arguments: Any) -> Rows:
    with PrepClient(source, ops, fields="dict", runtime_dir=server.runtime_dir, **arguments) as client:
        return [row for _ in range(epochs) for row in read(client)]


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_the_stream_is_the_same_with_any_workers_or_no_server(
    servers: list[Server], odd: ImageFolder, shuffle: bool | str
) -> None:
    """Batches of any size cut it."""
    arguments: dict[str, Any] = {"epochs": 2, "shuffle": shuffle, "seed": 11}
    expected = inline_rows(odd, batch_size=16, **arguments)
    assert len(expected) == 2 * (len(odd_files()) + 24)
    for server, sizes in zip(servers, ((1, 48), (7, 500), (4, 17)), strict=True):
        for size in sizes:
            assert served_rows(server, odd, batch_size=size, **arguments) == expected


PIPELINES: dict[str, list[Op]] = {
    "jitter": [RandomResizedCrop((24, 40)), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomVerticalFlip()],
    "classic": [Resize(40), CenterCrop(32), ToDtype("float32"), Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.3])],
    "crops": [RandomCrop(36, padding=4, pad_if_needed=True), Pad(2), RandomHorizontalFlip(), ToLayout("CHW")],
    "half": [RandomResizedCrop(16), Grayscale(3), ToDtype("float16"), ToLayout("HWC")],
    "one channel": [Resize((20, 30)), Grayscale()],
    "all that draw": [
        RandomApply([RandomResizedCrop(40)]), RandomChoice(OTHER_SIZE), RandomOrder(SAME_SIZE[::2]),
        RandomOrder(SAME_SIZE[1::2]), CenterCrop(24), ToDtype("float32", scale=True), GaussianNoise(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("ops", PIPELINES.values(), ids=PIPELINES)
def test_every_pipeline_gives_the_same_rows_everywhere(servers: list[Server], odd: ImageFolder, ops: list[Op]) -> None:
    expected = inline_rows(odd, ops=ops, shuffle=True, batch_size=16, seed=3)
    for server in servers:
        assert served_rows(server, odd, ops=ops, shuffle=True, batch_size=16, seed=3) == expected


@settings(max_examples=1, deadline=None)
@given(made=pipelines(("image", "boxes", "keypoints", "mask", "instances")))
@example(made=([ScaleJitter((24, 24)), RandomCrop(24, pad_if_needed=True), CopyPaste(), PadBoxes(8)], 1))
@example(
    made=(
        [Mosaic(16), RandomResizedCrop(16), RandomHorizontalFlip(), SanitizeBoxes(), PadBoxes(8), *whitened(16, 16)],
        2,
    )
)
def test_any_pipeline_gives_the_same_rows_through_kills(
    servers: list[Server], scenes: Coco, made: tuple[list[Op], int]
) -> None:
    ops, views = made
    arguments: dict[str, Any] = {"views": views, "fields": "dict", "shuffle": True, "batch_size": 25, "seed": 3}
    with PrepClient(scenes, ops, inline=True, **arguments) as client:
        expected = [bytes_of(batch) for batch in client]
    for server in (servers[0], servers[2]):
        with PrepClient(scenes, ops, runtime_dir=server.runtime_dir, **arguments) as client:
            batches = iter(client)
            found = [bytes_of(next(batches))]
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.workers()[0], signal.SIGKILL)
            found += [bytes_of(batch) for batch in batches]
        assert found == expected


def bytes_of(batch: dict[str, Any]) -> dict[str, list[bytes]]:
    parts = {name: value if isinstance(value, tuple) else (value,) for name, value in batch.items()}
    return {name: [part.contiguous().numpy().tobytes() for part in each] for name, each in parts.items()}


@pytest.mark.parametrize("zero_copy", [False, True])
def test_views_are_the_same_everywhere(servers: list[Server], odd: ImageFolder, zero_copy: bool) -> None:
    arguments: dict[str, Any] = {"views": 3, "epochs": 2, "shuffle": True, "batch_size": 13, "seed": 4}
    expected = inline_rows(odd, **arguments)
    assert len(expected) == 2 * (len(odd_files()) + 24)
    for server in servers:
        assert served_rows(server, odd, zero_copy=zero_copy, **arguments) == expected


def test_a_list_of_files_gives_its_labels_and_its_order(
    servers: list[Server], odd: ImageFolder, tmp_path: Path
) -> None:
    names = [f"{odd.root}/odd/{name}" for name in sorted(odd_files(), reverse=True)]
    source = listed(tmp_path / "train.txt", [(name, 3 * n) for n, name in enumerate(names)])
    expected = inline_rows(source, batch_size=5)
    for server in servers:
        assert served_rows(server, source, batch_size=5) == expected
    with PrepClient(source, OPS, batch_size=len(names), runtime_dir=servers[0].runtime_dir) as client:
        ((_, labels),) = list(client)
        assert labels.tolist() == [3 * n for n in range(len(names))]


def test_real_photos_are_the_same_everywhere(servers: list[Server], photos: Path) -> None:
    arguments: dict[str, Any] = {"ops": [RandomResizedCrop(64), RandomHorizontalFlip()], "batch_size": 64, "seed": 9}
    expected = inline_rows(ImageFolder(str(photos)), shuffle=True, **arguments)
    assert sorted(index for index, _ in expected) == list(range(len(expected)))
    for server in servers:
        assert served_rows(server, ImageFolder(str(photos)), shuffle=True, **arguments) == expected


def test_what_is_computed_in_the_client_is_the_same_too(servers: list[Server], odd: ImageFolder) -> None:
    def batches(**where: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        with PrepClient(
            odd, OPS, batch_size=16, normalize=([0.4, 0.5, 0.6], [0.2, 0.3, 0.2]), dtype=torch.float32, **where
        ) as client:
            return [tuple(batch) for batch in client]

    expected = batches(inline=True)
    got = batches(runtime_dir=servers[1].runtime_dir)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(expected, got, strict=True))
    assert expected[0][0].dtype == torch.float32


def test_fresh_tensors_may_be_kept(servers: list[Server], odd: ImageFolder) -> None:
    with PrepClient(odd, OPS, fields="dict", shuffle=True, batch_size=8, runtime_dir=servers[1].runtime_dir) as client:
        kept = [batch for _ in range(12) for batch in client]  # twice round the ring
        now = [rows_of(batch) for batch in kept]
    assert [row for rows in now for row in rows] == inline_rows(odd, epochs=12, shuffle=True, batch_size=8)
