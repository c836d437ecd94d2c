"""A training job for the chaos run: it may be killed at any moment, and goes on from its last checkpoint.

After every batch it replaces its checkpoint: where it stands, and of each unbroken run of positions that it has had
(there is to be one) where it began, its rows and a digest over all of them in order.
``python chaos_job.py CHECKPOINT OPTIONS`` runs until the file ``CHECKPOINT.stop`` is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from prepclient import (
    Joining,
    NoServer,
    PrepClient,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ServerGone,
    SyntheticImages,
)

SAMPLES = 3000
PAUSE_S = 0.05  # a step of training


def make(crop: int, lag: Any = "auto", **options: Any) -> PrepClient:
    """A client of the dataset that all jobs of a run read, of images of `crop` pixels."""
    source = SyntheticImages(SAMPLES, size=(48, 64))
    return PrepClient(
        source, [RandomResizedCrop(crop), RandomHorizontalFlip()], fields="dict", joining=Joining(lag=lag), **options
    )


def extend(digest: str, batch: dict[str, Any]) -> str:
    """The digest after the rows of one more batch, however they are cut into batches."""
    views = batch["image"] if isinstance(batch["image"], tuple) else (batch["image"],)
    for *images, label, index in zip(*views, batch["label"].tolist(), batch["index"].tolist(), strict=True):
        row = b"".join(image.contiguous().numpy().tobytes() for image in images) + f"{label} {index}".encode()
        digest = hashlib.sha256(digest.encode() + row).hexdigest()
    return digest


def before(after: dict[str, Any], rows: int) -> dict[str, Any]:
    """The state from which a batch of so many rows led to the state `after`."""
    start = after["position"] - rows
    if after["position"] > after["epoch_start"]:
        return {**after, "position": start}
    return {**after, "position": start, "epoch": after["epoch"] - 1, "epoch_start": after["epoch_start"] - SAMPLES}


def attach(job: PrepClient) -> None:
    """The first time: a job that begins just when the daemon is restarted is begun again, as by any launcher."""
    while True:
        try:
            len(job)
            return
        except (NoServer, ServerGone):
            time.sleep(0.2)


def main() -> None:
    """Until it is told to stop."""
    torch.set_num_threads(1)
    path, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    stop = path.with_suffix(".stop")
    job = make(**options)
    state: dict[str, Any] = {"runs": [], "now": None}
    if path.exists():
        state = json.loads(path.read_text())
        job.load_state_dict(state["now"])
    attach(job)
    runs: list[dict[str, Any]] = state["runs"]
    while not stop.exists():
        for batch in job:
            rows, now = len(batch["index"]), job.state_dict()
            first = before(now, rows)
            if not runs or first["position"] != state["now"]["position"]:
                runs.append({"first": first, "rows": 0, "digest": ""})
            runs[-1]["digest"] = extend(runs[-1]["digest"], batch)
            runs[-1]["rows"] += rows
            state["now"] = now
            new = path.with_suffix(".new")
            new.write_text(json.dumps(state))
            os.replace(new, path)
            if stop.exists():
                break
            time.sleep(PAUSE_S)
    job.close()


if __name__ == "__main__":
    main()
