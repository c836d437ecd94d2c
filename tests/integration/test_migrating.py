"""The pairs of docs/migrating.md run as written there: before and after give the same samples."""

from __future__ import annotations

import functools
import io
import itertools
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from prepclient import PrepClient, from_torchvision
from prepserver.seeding import seeded
from tests.support import tf_records
from tests.support.oracle import torchvision
from tests.support.photos import jpeg
from tests.support.server import Server

# Other libraries leave files open and use what is deprecated.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
BLOCKS = {
    (heading, said): code
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for said, code in re.findall(r"^```python\n# ([\w, -]+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
}
COUNT = 36  # a whole batch of 32 and one that is not
SIZES = ((300, 400), (260, 240), (256, 256), (230, 350))

Sample = tuple[torch.Tensor, ...]
"""An image (or a row) and its labels, and boxes where there are any."""


@functools.cache
def photos(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[bytes]:
    """All different."""
    return [jpeg(*size, seed=seed) for seed, size in zip(range(COUNT), itertools.cycle(sizes), strict=False)]


def folder(root: Path, files: list[bytes]) -> None:
    for index, data in enumerate(files):
        path = root / "train" / ("cats" if index < COUNT // 3 else "dogs") / f"{index:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def shards(root: Path) -> None:
    files = photos()
    for shard in range(4):
        with tarfile.open(root / f"train-{shard:03}.tar", "w") as archive:
            for index in range(shard * COUNT // 4, (shard + 1) * COUNT // 4):
                for name, part in ((f"{index:04}.jpg", files[index]), (f"{index:04}.cls", b"%d" % (index % 5))):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(part)
                    archive.addfile(entry, io.BytesIO(part))


def records(root: Path) -> None:
    rows: list[dict[str, tf_records.Values]] = [
        {"image": [data], "label": [index % 5]} for index, data in enumerate(photos())
    ]
    for number, part in enumerate((rows[: COUNT // 2], rows[COUNT // 2 :])):
        (root / f"train-{number}.tfrecord").write_bytes(tf_records.file_of(part))


def arrays(root: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(root / "x.npy", rng.normal(size=(COUNT, 5, 3)).astype(np.float32))
    np.save(root / "y.npy", rng.integers(0, 5, COUNT))


def beton(root: Path) -> None:
    """Raw pixels of photos that need no resizing, in FFCV's format where that is installed."""
    folder(root, photos(((256, 340), (300, 256), (256, 256))))
    try:
        from ffcv.fields import IntField, RGBImageField
        from ffcv.writer import DatasetWriter
    except ImportError:
        return
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    writer = DatasetWriter(str(root / "train.beton"), fields, num_workers=1)
    writer.from_indexed_dataset(torchvision("datasets").ImageFolder(root / "train"))


def saved(root: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets, which writes its format")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=5)})
    rows = {"image": [{"bytes": data} for data in photos()], "label": [index % 5 for index in range(COUNT)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(root / "food101" / "train", num_shards=2)


def yolo(root: Path) -> None:
    """Square photos, one of them without a label file; the page's own lines convert the others."""
    (root / "images").mkdir()
    (root / "labels").mkdir()
    for index in range(5):
        (root / "images" / f"{index}.jpg").write_bytes(jpeg(640, 640, seed=index))
        lines = [f"{k % 2} 0.{4 + k} 0.5 0.25 0.{1 + index}25\n" for k in range(index)]
        if lines:
            (root / "labels" / f"{index}.txt").write_text("".join(lines))
    run("Ultralytics", "convert", root)


def robot(root: Path) -> None:
    """Two episodes, by LeRobot where that is installed."""
    rng, dims = np.random.default_rng(0), {"observation.state": 6, "action": 6}
    rows = [{name: rng.normal(size=n).astype(np.float32) for name, n in dims.items()} for _ in range(COUNT)]
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError:
        (root / "robot" / "data" / "chunk-000").mkdir(parents=True)
        columns = {name: [row[name].tolist() for row in rows] for name in dims}
        table = pa.table(columns | {"episode_index": [0] * 16 + [1] * (COUNT - 16)})
        pq.write_table(table, root / "robot" / "data" / "chunk-000" / "file-000.parquet")
        return
    features = {name: {"dtype": "float32", "shape": (n,), "names": None} for name, n in dims.items()}
    made = LeRobotDataset.create("me/robot", 50, features, root / "robot", use_videos=False)
    for number, row in enumerate(rows, 1):
        made.add_frame(row | {"task": "none"})
        if number in (16, COUNT):
            made.save_episode()
    made.finalize()


def pairs(batch: Any) -> Iterator[Sample]:
    """Samples of (images, labels): what prepserver gives, and most others."""
    return zip(*batch, strict=True)


def of_dicts(batch: Any) -> Iterator[Sample]:
    return zip(batch["image"], batch["label"], strict=True)


def of_robot(batch: Any) -> Iterator[Sample]:
    names = ("state", "action", "state_is_pad", "action_is_pad")
    named = {name.removeprefix("observation."): each for name, each in batch.items()}
    return zip(*(named[name] for name in names), strict=True)


def of_tensorflow(batch: Any) -> Iterator[Sample]:
    values, labels = (torch.from_numpy(each.numpy()) for each in batch)
    return zip(values.permute(0, 3, 1, 2) if values.dtype == torch.uint8 else values, labels, strict=True)


def of_dali(batch: Any) -> Iterator[Sample]:
    (output,) = batch
    return zip(output["data"].permute(0, 3, 1, 2), output["label"].squeeze(1), strict=True)


def of_ultralytics(batch: Any) -> Iterator[Sample]:
    for number, image in enumerate(batch["img"]):
        chosen = batch["batch_idx"] == number
        yield image, batch["cls"][chosen].squeeze(1), batch["bboxes"][chosen]


def of_targets(batch: Any) -> Iterator[Sample]:
    return ((image, target["labels"], target["boxes"]) for image, target in zip(*batch, strict=True))


@dataclass(frozen=True)
class Pair:
    """What a pair of the page needs.

    Attributes:
        package: The other library.
        data: Writes the dataset into a folder.
        levels: By how much a value of a pixel may differ: one where images are resized, as the page says. A level of
            values that are normalized is at most 0.0176.
        before: Samples of a batch of the other library.
        after: Samples of a batch of prepserver.
        kind: What follows "before" and "after" in the page.
        count: How many samples the dataset has.
    """

    package: str
    data: Callable[[Path], None]
    levels: float
    before: Callable[[Any], Iterator[Sample]] = pairs
    after: Callable[[Any], Iterator[Sample]] = pairs
    kind: str = ""
    count: int = COUNT


PAIRS = {
    "torchvision": Pair("torchvision", lambda root: folder(root, photos()), 1),
    "timm": Pair("timm", lambda root: folder(root, photos()), 0.0176),
    "WebDataset": Pair("webdataset", shards, 0),
    "tf.data": Pair("tensorflow", records, 0, of_tensorflow),
    "tf.data, arrays": Pair("tensorflow", arrays, 0, of_tensorflow, kind=", arrays"),
    "FFCV": Pair("ffcv", beton, 0),
    "DALI": Pair("nvidia.dali", lambda root: folder(root, photos()), 0, of_dali),
    "Hugging Face datasets": Pair("datasets", saved, 0, of_dicts),
    "LeRobot": Pair("lerobot", robot, 0, of_robot, of_robot),
    "Ultralytics": Pair("ultralytics", yolo, 0, of_ultralytics, of_targets, count=5),
}


USES_TORCHVISION = ("timm", "ultralytics", "lerobot")
REPLACED = {"num_workers=8": "num_workers=0", '"cuda"': '"cpu"'}


def run(heading: str, said: str, root: Path) -> dict[str, Any]:
    """Runs a block of the page on the data in a folder; returns its names. The loader has no worker processes."""
    code = BLOCKS[heading, said].replace('"/data/', f'"{root}/')
    for old, new in REPLACED.items():
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(code, f"{heading}, {said}", "exec"), names)
    return names


@pytest.fixture(params=PAIRS)
def each(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def after(each: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """All samples as prepserver gives them."""
    pair = PAIRS[each]
    pair.data(tmp_path)
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(server.runtime_dir))
    with run(each.split(",")[0], f"after{pair.kind}", tmp_path)["loader"] as loader:
        return [sample for batch in loader for sample in pair.after(batch)]


def test_both_give_the_same_samples(each: str, after: list[Sample], tmp_path: Path) -> None:
    pair = PAIRS[each]
    assert len(after) == pair.count
    if "torchvision" in BLOCKS[each.split(",")[0], f"before{pair.kind}"] or pair.package in USES_TORCHVISION:
        torchvision("transforms.v2")  # may need help to be imported
    pytest.importorskip(pair.package, reason=f"needs {pair.package}: only what one writes for prepserver has run")
    loader = run(each.split(",")[0], f"before{pair.kind}", tmp_path)["loader"]
    # Cloned, because some libraries use their memory again.
    before = [tuple(part.clone() for part in sample) for batch in loader for sample in pair.before(batch)]
    assert len(before) == len(after)
    for (theirs, *labels), (ours, *own) in zip(before, after, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=pair.levels)
        for one, other in zip(own, labels, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5, check_dtype=False)


def test_training_as_with_timm(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, photos())
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(server.runtime_dir))
    names = run("timm", "training", tmp_path)
    with names["loader"] as loader:
        ((images, weights),) = list(loader)
        assert (images.shape, images.dtype, weights.shape) == ((32, 3, 224, 224), torch.float32, (32, 1000))
        torch.testing.assert_close(weights[:, :2].sum(1), torch.ones(32))
        mixed, state = loader, loader.state_dict()
    with PrepClient(mixed.spec.source, names["ops"], batch_size=32, shuffle=True, drop_last=True, seed=42) as plain:
        plain.load_state_dict(state)  # no mixing from here on
        assert next(iter(plain))[1].shape == (32,)
    torchvision("transforms")
    factory = pytest.importorskip("timm.data.transforms_factory", reason="needs timm: only what one writes has run")
    given = factory.create_transform(224, is_training=True, interpolation="random", use_prefetcher=True)
    assert from_torchvision(given) == names["ops"]


def test_timms_augmentation_depends_on_the_seed_alone(tmp_path: Path) -> None:
    torchvision("transforms")
    pytest.importorskip("timm", reason="needs timm")
    augment = run("timm", "plug-in", tmp_path)["timm_augment"]
    image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)

    def made(seed: int) -> Any:
        with seeded(seed, keep=True):  # as workers call it
            return augment(image, np.random.default_rng(seed))

    first, again = ([made(seed) for seed in range(20)] for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert {(each.shape, each.dtype.name) for each in first} == {((224, 224, 3), "uint8")}
    assert len({each.tobytes() for each in first}) > 10


def test_a_client_of_rank_0_alone_has_all_samples(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, photos(((256, 256),)))
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", str(server.runtime_dir))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with run("What is different", "alone", tmp_path)["loader"] as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT


def test_a_pair_has_at_most_five_lines_each() -> None:
    named = {
        (heading.split(",")[0], side + pair.kind) for heading, pair in PAIRS.items() for side in ("before", "after")
    }
    assert BLOCKS.keys() == named | {
        ("Ultralytics", "convert"), ("timm", "training"), ("timm", "plug-in"), ("What is different", "alone"),
    }  # fmt: skip
    for name, code in BLOCKS.items():
        lines = [line for line in code.splitlines() if line and not re.match(r"(import|from) ", line)]
        assert len(lines) <= 5 or "convert" in name, name
