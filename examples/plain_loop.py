"""A plain training loop, and where its time went.

    python examples/plain_loop.py

Replace `SyntheticImages` by your own dataset, such as `ImageFolder("/data/train")`.
"""

from __future__ import annotations

import torch
from torch import nn

from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Two epochs."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = model.append(nn.Linear(8, 1000)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = PrepClient(
        SyntheticImages(256, size=96), [RandomResizedCrop(64), RandomHorizontalFlip()], batch_size=32, shuffle=True,
        drop_last=True, device=DEVICE, dtype=torch.float32, job="plain", workers=2,
    )  # fmt: skip
    with train:
        for images, labels in train.progress(2):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(train.stats(table=True))


if __name__ == "__main__":
    main()
