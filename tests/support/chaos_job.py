"""A training job for the chaos run: it may be killed at any moment, and goes on from its last checkpoint.

After every batch it replaces its checkpoint: where it stands, how many rows it has had, and a digest over all
of them in order. ``python chaos_job.py CHECKPOINT OPTIONS`` runs until the file ``CHECKPOINT.stop`` is there.
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

from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages

SAMPLES = 3000
PAUSE_S = 0.02  # a step of training


def make(**options: Any) -> PrepClient:
    """A client of the dataset that all jobs of a run read."""
    source = SyntheticImages(SAMPLES, size=(48, 64))
    return PrepClient(source, [RandomResizedCrop(16), RandomHorizontalFlip()], fields="dict", **options)


def extend(digest: str, batch: dict[str, torch.Tensor]) -> str:
    """The digest after the rows of one more batch, however they are cut into batches."""
    for image, label, index in zip(batch["image"], batch["label"].tolist(), batch["index"].tolist(), strict=True):
        row = image.contiguous().numpy().tobytes() + f"{label} {index}".encode()
        digest = hashlib.sha256(digest.encode() + row).hexdigest()
    return digest


def main() -> None:
    """Until it is told to stop."""
    torch.set_num_threads(1)
    path, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    stop = path.with_suffix(".stop")
    job = make(**options)
    state: dict[str, Any] = {"rows": 0, "digest": "", "first": None, "now": None}
    if path.exists():
        state = json.loads(path.read_text())
        job.load_state_dict(state["now"])
    while not stop.exists():
        batches = iter(job)
        if state["first"] is None:
            state["first"] = job.state_dict()  # where on the stream it was put
        for batch in batches:
            state["digest"] = extend(state["digest"], batch)
            state["rows"] += len(batch["index"])
            state["now"] = job.state_dict()
            new = path.with_suffix(".new")
            new.write_text(json.dumps(state))
            os.replace(new, path)
            if stop.exists():
                break
            time.sleep(PAUSE_S)
    job.close()


if __name__ == "__main__":
    main()
