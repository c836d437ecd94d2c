"""Mixed precision with channels_last: rows are copied as uint8, and become normalized bfloat16 on the device.

python examples/mixed_precision.py
"""

from __future__ import annotations

import torch
from torch import nn

from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def main() -> None:
    """One epoch."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = model.append(nn.Linear(8, 1000)).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = PrepClient(
        SyntheticImages(128, size=96), [RandomResizedCrop(64), RandomHorizontalFlip()], batch_size=32, shuffle=True,
        device=DEVICE, normalize=IMAGENET, dtype=torch.bfloat16, memory_format=torch.channels_last, job="mixed",
        workers=2,
    )  # fmt: skip
    with train:
        for images, labels in train:
            assert images.is_contiguous(memory_format=torch.channels_last)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{images.dtype}, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
