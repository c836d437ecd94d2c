"""Accelerate: prepare the model and the optimizer, but not the loader.

    pip install accelerate; prepserver start -d; accelerate launch examples/accelerate_loop.py

One daemon serves all processes. For a single process, `workers=2` starts one if none runs. PrepClient takes its rank
from torch.distributed, reads only its part, and hands out tensors on the device.
"""

from __future__ import annotations

from accelerate import Accelerator
from torch import nn, optim

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages


def main() -> None:
    """Two epochs."""
    accelerator = Accelerator()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000))
    model, optimizer = accelerator.prepare(model, optim.SGD(model.parameters(), lr=0.1))
    train = PrepClient(
        SyntheticImages(120, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, drop_last=True,
        device=accelerator.device, normalize=((0.5,) * 3, (0.25,) * 3), job="accelerate", workers=2,
    )  # fmt: skip
    accelerator.register_for_checkpointing(train)  # `save_state` and `load_state` keep its place
    with train:
        for epoch in range(train.epoch, 2):
            for images, labels in train:
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.print(f"epoch {epoch}: {len(train)} batches, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
