"""Gradient accumulation: one step of the optimizer for every four batches.

python examples/gradient_accumulation.py
"""

from __future__ import annotations

import torch
from torch import nn

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EVERY = 4


def main() -> None:
    """Two epochs. The last batches of an epoch make a step even if they are fewer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = PrepClient(
        SyntheticImages(240, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, device=DEVICE,
        dtype=torch.float32, job="accumulate", workers=2,
    )  # fmt: skip
    with train:
        for epoch in range(2):
            steps = 0
            for number, (images, labels) in enumerate(train, 1):
                loss = nn.functional.cross_entropy(model(images), labels)
                (loss / EVERY).backward()
                if number % EVERY == 0 or number == len(train):
                    optimizer.step()
                    optimizer.zero_grad()
                    steps += 1
            print(f"epoch {epoch}: {len(train)} batches, {steps} steps, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
