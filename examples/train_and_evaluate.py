"""Training with an evaluation after each epoch: two streams, served by the same workers as each needs them.

python examples/train_and_evaluate.py
"""

from __future__ import annotations

import torch
from torch import nn

from prepclient import CenterCrop, PrepClient, RandomHorizontalFlip, RandomResizedCrop, Resize, Split, SyntheticImages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PHOTOS = SyntheticImages(250, size=96, num_classes=10)


def main() -> None:
    """Two epochs. `Split` holds out one photo of five for the evaluation, which includes its short last batch."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = model.append(nn.Linear(8, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = PrepClient(
        Split(PHOTOS, k=5, fold=0), [RandomResizedCrop(64), RandomHorizontalFlip()], batch_size=32, shuffle=True,
        drop_last=True, device=DEVICE, dtype=torch.float32, job="train", workers=2,
    )  # fmt: skip
    held_out = PrepClient(
        Split(PHOTOS, k=5, fold=0, train=False), [Resize(72), CenterCrop(64)], batch_size=32, device=DEVICE,
        dtype=torch.float32, job="evaluate", workers=2,
    )  # fmt: skip
    with train, held_out:
        for epoch in range(2):
            for images, labels in train:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right = seen = 0
            with torch.inference_mode():
                for images, labels in held_out:
                    right += int((model(images).argmax(1) == labels).sum())
                    seen += len(labels)
            print(f"epoch {epoch}: {len(train) * 32} trained on, {right} of {seen} right")


if __name__ == "__main__":
    main()
