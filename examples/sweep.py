"""A sweep over learning rates: several jobs share one pass, so each sample is decoded once for all of them.

    python examples/sweep.py

Here the jobs are threads, to fit into one file. Processes, on one GPU or several, share in the same way, as long as
source, order, seed and ops are the same and one daemon serves them.
"""

from __future__ import annotations

import threading

import torch
from torch import nn

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages

RATES = (0.01, 0.03, 0.1)


def run(rate: float, begin: threading.Barrier, found: dict[float, tuple[float, float]]) -> None:
    """One job of the sweep; puts its loss and sharing factor into `found`."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    train = PrepClient(
        SyntheticImages(240, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, seed=0,
        dtype=torch.float32, job=f"lr-{rate}", workers=2,
    )  # fmt: skip
    with train:
        len(train)  # attaches
        begin.wait()
        for _ in range(2):
            for images, labels in train:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        found[rate] = loss.item(), train.stats()["sharing_factor"]
        begin.wait()  # all leave together


def main() -> None:
    """All jobs at once."""
    found: dict[float, tuple[float, float]] = {}
    begin = threading.Barrier(len(RATES))
    jobs = [threading.Thread(target=run, args=(rate, begin, found)) for rate in RATES]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    for rate, (loss, sharing) in sorted(found.items()):
        print(f"lr {rate}: loss {loss:.2f}, {sharing:.1f} rows delivered for each row made")


if __name__ == "__main__":
    main()
