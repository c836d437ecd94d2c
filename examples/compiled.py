"""torch.compile: with `drop_last` all batches have one shape, so the model is compiled only once.

    python examples/compiled.py

It needs torch 2.6 or newer, to make a second compilation an error. On a GPU torch compiles with Triton. On the CPU it
would need a C++ compiler, so there the graphs are only traced.
"""

from __future__ import annotations

import torch
from torch import nn

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Two epochs; a batch of another shape would be an error."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000)).to(DEVICE)
    step = torch.compile(model, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = PrepClient(
        SyntheticImages(120, size=64), [RandomResizedCrop(32)], batch_size=32, shuffle=True, drop_last=True,
        device=DEVICE, dtype=torch.float32, job="compiled", workers=2,
    )  # fmt: skip
    with train:
        for epoch in range(2):
            for images, labels in train:
                loss = nn.functional.cross_entropy(step(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                torch.compiler.set_stance("fail_on_recompile")  # from the second step on
            print(f"epoch {epoch}: {len(train)} batches, loss {loss.item():.2f}")
    torch.compiler.set_stance("default")


if __name__ == "__main__":
    main()
