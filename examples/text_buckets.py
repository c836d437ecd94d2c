"""Text in buckets: words become numbers, and each batch has texts of similar length, padded to the longest.

    python examples/text_buckets.py

Sentences of a made-up language; the model learns whether a sentence has more vowels than consonants.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import torch
from torch import nn

from prepclient import BucketByLength, Jsonl, PadTokens, PrepClient, Tokenize, Truncate, kinds

WORDS = ["<pad>", "<unk>", *("ba", "ae", "ioa", "strk", "ou", "plnt", "ei", "gor")]


def write_data(folder: Path) -> None:
    """Writes sentences of 1 to 60 words with their labels, and the vocabulary, one word per line."""
    draw = random.Random(0)
    with open(folder / "train.jsonl", "w") as file:
        for _ in range(960):
            words = draw.choices([*WORDS[2:], "zq"], k=int(60 ** draw.random()))
            vowels = sum(letter in "aeiou" for word in words for letter in word)
            label = int(2 * vowels > sum(map(len, words)))
            file.write(f'{{"text": "{" ".join(words)}", "label": {label}}}\n')
    (folder / "words.txt").write_text("\n".join(WORDS))


def main() -> None:
    """One epoch of the dataset as it is stored, and one in buckets."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        source = Jsonl(folder / "train.jsonl", {"text": kinds.Text(), "label": kinds.Label()})
        ops = [Tokenize(folder / "words.txt", unknown="<unk>"), Truncate(40), PadTokens(40, trim=True)]
        embed, out = nn.Embedding(len(WORDS), 16), nn.Linear(16, 2)
        optimizer = torch.optim.Adam([*embed.parameters(), *out.parameters()], lr=0.02)
        for kind, data in (("as stored", source), ("in buckets", BucketByLength(source))):
            batches = {"batch_size": 32, "shuffle": True, "order": "batch-shuffle-repeat"}
            train, kept, total = PrepClient(data, ops, **batches, job="buckets", workers=2), 0, 0
            with train:
                for tokens, mask, _, labels in train:
                    weights = mask[:, :, None].float()
                    means = (embed(tokens) * weights).sum(1) / weights.sum(1)
                    loss = nn.functional.cross_entropy(out(means), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    kept, total = kept + int(mask.sum()), total + mask.numel()
            print(f"{kind}: {100 * (1 - kept / total):.0f} % padding, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
