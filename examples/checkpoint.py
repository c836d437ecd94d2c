"""Checkpoint and resume in the middle of an epoch: no sample twice, none left out.

python examples/checkpoint.py
"""

from __future__ import annotations

import io

import torch
from torch import nn

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages


def make_train(job: str) -> PrepClient:
    """The same arguments before and after; only job, batch size, workers and ranks may change."""
    source, ops = SyntheticImages(96, size=64), [RandomResizedCrop(32)]
    return PrepClient(source, ops, batch_size=16, shuffle=True, seed=7, fields=("image", "index"), job=job, workers=2)


def main() -> None:
    """Stops after two batches of the second epoch, and continues from the file."""
    model, file, seen = nn.Linear(3 * 32 * 32, 10), io.BytesIO(), []
    with make_train("first") as train:
        for _ in train:
            pass
        for number, (_images, indices) in enumerate(train, 1):
            seen += indices.tolist()
            if number == 2:
                torch.save({"model": model.state_dict(), "data": train.state_dict()}, file)
                break  # the machine is taken away
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    with make_train("second") as train:
        model.load_state_dict(saved["model"])
        train.load_state_dict(saved["data"])
        for _images, indices in train:
            seen += indices.tolist()
        print(f"epoch {train.epoch - 1}: {len(seen)} samples, {len(set(seen))} of them different")
    assert sorted(seen) == list(range(96))


if __name__ == "__main__":
    main()
