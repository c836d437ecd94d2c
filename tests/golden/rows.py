"""Digests of the rows of many pipelines, taken through the public client."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from prepclient import PrepClient, Sharding, SyntheticImages
from prepserver.pipeline.ops import OPS, Op
from prepserver.pipeline.pipeline import Pipeline
from prepserver.source import Record
from tests.support.odd_images import odd_files, odd_tree
from tests.support.scenes import COLUMNS, Scenes, encoded, rows_of, scene

FILE = Path(__file__).with_name("rows.json")

Sources = dict[str, Any]

ORDERS: list[dict[str, Any]] = [
    {"shuffle": shuffle, "order": order, "num_shards": shards, "shard_index": shards - 1, "drop_last": drop}
    for order in ("shuffle-batch-repeat", "shuffle-repeat-batch", "batch-shuffle-repeat")
    for shuffle in (False, True, "full")
    for shards in (1, 3)
    for drop in (False, True)
    if order != "batch-shuffle-repeat" or shuffle
]
"""Ways to cut and shuffle, all with the plainest pipeline."""


def sources(folder: Path) -> Sources:
    """Files of every kind, and drawn images of one size."""
    return {"odd": odd_tree(folder / "odd", plain=6), "drawn": SyntheticImages(15, size=(60, 90), seed=3)}


def encoded_as_here() -> str:
    """Digest of the files of every kind: not each release of Pillow writes the same bytes."""
    return hashlib.sha256(b"".join(odd_files().values())).hexdigest()


def ops_of(wire: list[dict[str, Any]]) -> tuple[list[Op], int]:
    """The ops and the number of views that a pipeline's wire form describes."""
    views = wire[-1].get("views", 1) if wire else 1
    ops = [
        OPS[entry["op"]].from_params({k: v for k, v in entry.items() if k != "op"}) for entry in wire if "op" in entry
    ]
    return ops, views


def digest(source: Any, ops: list[Op], num_shards: int = 1, shard_index: int = 0, **arguments: Any) -> str:
    """Of all that a client hands out in two epochs: shapes, dtypes and bytes of each field in order."""
    found = hashlib.sha256()
    spec = {"batch_size": 4, "seed": 11, "inline": True, "fields": "dict", "on_error": "mask", **arguments}
    spec["sharding"] = Sharding(num_shards=num_shards, shard_index=shard_index)
    with PrepClient(source, ops, **spec) as client:
        for _ in range(2):
            for batch in client:
                for name, value in batch.items():
                    for tensor in value if isinstance(value, tuple) else (value,):
                        rows = tensor.contiguous().numpy()
                        found.update(f"{name} {rows.dtype} {rows.shape}".encode())
                        found.update(rows.tobytes())
    return found.hexdigest()[:24]


def digests(kept: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The content of `FILE`, computed again for the pipelines that it names."""
    given = sources(folder)
    rows = [{"pipeline": each["pipeline"], **digests_of(each["pipeline"], given)} for each in kept["rows"]]
    plain = [OPS["CenterCrop"](size=16)]  # type: ignore[call-arg]
    orders = [{"order": order, "digest": digest(given["drawn"], plain, **order)} for order in ORDERS]
    ops = [{"pipeline": each["pipeline"], "digest": digest_of_op(each["pipeline"])} for each in kept["ops"]]
    return {"files": [encoded_as_here()], "rows": rows, "orders": orders, "ops": ops}


def digests_of(wire: list[dict[str, Any]], given: Sources) -> dict[str, str]:
    """Of one pipeline's rows, by the name of the source."""
    ops, views = ops_of(wire)
    return {name: digest(source, ops, views=views, shuffle=True) for name, source in given.items()}


def composed(number: int) -> Record:
    """A scene with gradients, so that every op changes some of its pixels, and with its objects on its mask."""
    found = scene(number, height := 26 + 3 * number, width := 40 - 2 * number)
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([5 * rows + columns, 3 * columns + 20 * number, rows * columns], -1) % 256
    classes = np.full((height, width), 1 + number, np.uint8)
    classes[2 : height // 2, 1 : width // 2] = 100 + number
    labels = np.array([1 + number, 100 + number])
    return {**found, "image": encoded(image.astype(np.uint8)), "classes": classes, "labels": labels}


def digest_of_op(wire: list[dict[str, Any]]) -> str:
    """Of the rows that a pipeline makes of six scenes, which hold a column of each kind; no file is a JPEG."""
    found = hashlib.sha256()
    source = Scenes([composed(number) for number in range(6)])
    rows, bad = rows_of(source.stream(), Pipeline.from_wire(wire, COLUMNS), 6)
    assert not bad, bad
    for name, values in rows.items():
        found.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return found.hexdigest()[:24]


def load() -> dict[str, Any]:
    """What `FILE` holds."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def save(found: dict[str, Any]) -> None:
    """Writes `FILE`, a line for each entry, so that a change shows what it changed."""
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(each) for each in found[key]) + "\n]" for key in found]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
