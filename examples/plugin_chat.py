"""Chats as tokens and labels: a function of your own writes each chat out, and only the answers are learned.

    python examples/plugin_chat.py

A JSON value, here a list of messages, reaches the function as text.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prepclient import Jsonl, PadTokens, PluginOp, PrepClient, kinds

ROLES = {"user": 256, "assistant": 257}  # the other tokens are bytes
PAD, NOT_LEARNED = 258, -100


def chat(values: dict[str, str], rng: Any) -> dict[str, list[int]]:
    """Returns the tokens of a chat, and labels with `NOT_LEARNED` in place of what the user says."""
    tokens: list[int] = []
    labels: list[int] = []
    for message in json.loads(values["messages"]):
        said = [ROLES[message["role"]], *message["content"].encode()]
        tokens += said
        labels += [NOT_LEARNED] * len(said) if message["role"] == "user" else said
    return {"tokens": tokens, "labels": labels}


def write_data(path: Path) -> None:
    """Writes chats in which the assistant repeats a word."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 8))) for _ in range(512)]
    chats = [{"messages": [{"role": role, "content": word} for role in ROLES]} for word in words]
    path.write_text("\n".join(map(json.dumps, chats)))


def main() -> None:
    """Two epochs."""
    ops = [
        PluginOp("chat", column="messages", returns={"tokens": kinds.Tokens(), "labels": kinds.Tokens()}),
        PadTokens(32, pad=PAD, mask=None), PadTokens(32, pad=NOT_LEARNED, column="labels", mask=None),
    ]  # fmt: skip
    embed, model, out = nn.Embedding(259, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, 259)
    optimizer = torch.optim.Adam([*embed.parameters(), *model.parameters(), *out.parameters()], lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder) / "chats.jsonl")
        source = Jsonl(Path(folder) / "chats.jsonl", {"messages": kinds.Json()})
        with PrepClient(source, ops, batch_size=32, shuffle=True, workers=2, plugins="plugin_chat:chat") as train:
            for epoch in range(2):
                for tokens, labels in train:
                    logits = out(model(embed(tokens))[0])
                    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(f"epoch {epoch}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
