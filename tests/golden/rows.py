"""Digests of the rows of many pipelines, taken through the public client."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from prepclient import PrepClient, Sharding, SyntheticImages
from prepserver.pipeline.ops import OPS, Op
from tests.support.odd_images import odd_files, odd_tree

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
    return {"files": [encoded_as_here()], "rows": rows, "orders": orders}


def digests_of(wire: list[dict[str, Any]], given: Sources) -> dict[str, str]:
    """Of one pipeline's rows, by the name of the source."""
    ops, views = ops_of(wire)
    return {name: digest(source, ops, views=views, shuffle=True) for name, source in given.items()}


def load() -> dict[str, Any]:
    """What `FILE` holds."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def save(found: dict[str, Any]) -> None:
    """Writes `FILE`, a line for each entry, so that a change shows what it changed."""
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(each) for each in found[key]) + "\n]" for key in found]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
