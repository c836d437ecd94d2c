"""Text to image: photos with captions in buckets of like aspect ratio, dropped captions, and resuming in mid-epoch.

    python examples/plugin_buckets.py

All rows of a client have one size, so each bucket is a client of its own. The order of their batches is random, and
the same in all ranks.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from prepclient import (
    Jsonl,
    PadTokens,
    PluginOp,
    PrepClient,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    Subset,
    Tokenize,
    kinds,
)

SIZES = [(48, 48), (32, 72), (72, 32)]  # (height, width) of a bucket; models use multiples of 64


def dropped(caption: str, rng: np.random.Generator, p: float = 0.1) -> str:
    """Returns the empty caption with probability `p`, for classifier-free guidance."""
    return "" if rng.random() < p else caption


class Buckets:
    """Batches of several clients in turn. Its state is valid in all ranks."""

    def __init__(self, clients: list[PrepClient]) -> None:
        self.clients = clients
        self.epoch = self._done = 0

    def __iter__(self) -> Iterator[Any]:
        turns = [number for number, client in enumerate(self.clients) for _ in range(len(client))]
        random.Random(self.epoch).shuffle(turns)
        batches = [iter(client) for client in self.clients]
        try:
            for number in turns[self._done :]:
                self._done += 1
                yield next(batches[number])
        finally:
            self.epoch, self._done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns where training is, for a checkpoint that is saved within the loop."""
        clients = [client.state_dict() for client in self.clients]
        return {"epoch": self.epoch, "done": self._done, "clients": clients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with the batch after those that had been taken."""
        self.epoch, self._done = state["epoch"], state["done"]
        for client, each in zip(self.clients, state["clients"], strict=True):
            client.load_state_dict(each)


def write_data(folder: Path) -> None:
    """Writes photos of many sizes, and a metadata.jsonl as Hugging Face's image folders have it."""
    draw, noise = random.Random(0), np.random.default_rng(0)
    lines = []
    for number in range(160):
        width, height = draw.randint(40, 160), draw.randint(40, 160)
        pixels = noise.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        caption = " ".join(draw.choices(["a", "red", "blue", "cat", "dog", "house"], k=5))
        lines.append(json.dumps({"file_name": f"{number}.png", "text": caption, "width": width, "height": height}))
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    (folder / "words.txt").write_text("\n".join(["<pad>", "a", "red", "blue", "cat", "dog", "house"]))


def make_buckets(folder: Path) -> Buckets:
    """Puts each photo of 48 pixels or more into the bucket of the nearest aspect ratio."""
    shapes = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    ratios = np.log([height / width for height, width in SIZES])
    members: list[list[int]] = [[] for _ in SIZES]
    for index, shape in enumerate(shapes):
        if min(shape["width"], shape["height"]) >= 48:
            ratio = np.log(shape["height"] / shape["width"])
            members[int(np.abs(ratios - ratio).argmin())].append(index)
    columns = {"image": kinds.Image(), "text": kinds.Text("")}
    source, clients = Jsonl(folder / "metadata.jsonl", columns, names={"image": "file_name"}), []
    for size, indices in zip(SIZES, members, strict=True):
        np.save(folder / f"bucket-{size[0]}x{size[1]}.npy", indices)
        ops = [
            Resize(size, "bicubic", cover=True), RandomCrop(size), RandomHorizontalFlip(),
            PluginOp("dropped", column="text"), Tokenize(folder / "words.txt"), PadTokens(8),
        ]  # fmt: skip
        members_only = Subset(source, file=folder / f"bucket-{size[0]}x{size[1]}.npy")
        client = PrepClient(
            members_only, ops, batch_size=8, shuffle=True, drop_last=True, fields=("image", "tokens"),
            normalize=([0.5] * 3, [0.5] * 3), workers=2, plugins="plugin_buckets:dropped",
        )  # fmt: skip
        clients.append(client)
    return Buckets(clients)


def main() -> None:
    """Two epochs. In the second one training stops after five batches, and goes on with new clients."""
    embed, model = nn.Embedding(7, 3, padding_idx=0), nn.Conv2d(3, 3, 3, padding=1)
    optimizer, counts = torch.optim.Adam([*embed.parameters(), *model.parameters()], lr=0.01), [0, 0]
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name))
        state: dict[str, Any] | None = None
        for stops_after in (5, None):
            buckets = make_buckets(Path(name))
            if state is not None:
                buckets.load_state_dict(state)
            for epoch in range(buckets.epoch, 2):
                for images, tokens in buckets:
                    noise = torch.randn_like(images)
                    hints = embed(tokens).mean(1)[:, :, None, None]
                    loss = nn.functional.mse_loss(model(images + noise + hints), noise)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    counts[epoch] += 1
                    if epoch == 1 and counts[epoch] == stops_after:
                        state = buckets.state_dict()
                        break
            for client in buckets.clients:
                client.close()
    print(f"batches of two epochs: {counts[0]} and {counts[1]}, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
