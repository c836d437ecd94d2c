"""Speech recognition: WAV files and a manifest, log-mel frames by a function of your own, batches of similar length.

    python examples/plugin_sound.py

A made-up language has a tone for each letter. Workers read the sounds, change their speed, hide a band of
frequencies, and pad the frames; a batch is as long as its longest sound.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from prepclient import BucketByLength, Jsonl, PadArray, PadTokens, PluginOp, PrepClient, kinds

RATE, WINDOW, HOP = 8000, 256, 80
BANDS, MOST_FRAMES = 32, 400
EDGES = np.linspace(0, WINDOW // 2, BANDS + 1).astype(int)[:-1]  # of bands; a mel scale has wider ones at the end


def heard(values: dict[str, Any], rng: np.random.Generator, augment: bool = True) -> dict[str, Any]:
    """Returns the frames of a sound, and its letters as tokens from 1."""
    with wave.open(io.BytesIO(values["sound"])) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    if augment:
        samples = np.interp(np.arange(0, len(samples) - 1, rng.uniform(0.9, 1.1)), np.arange(len(samples)), samples)
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP] * np.hanning(WINDOW)
    frames = np.log(np.add.reduceat(np.abs(np.fft.rfft(windows)) ** 2, EDGES, axis=1) + 1e-3)
    if augment:
        band = int(rng.integers(BANDS))
        frames[:, band : band + int(rng.integers(4))] = frames.mean()
    return {"frames": frames.astype(np.float32), "letters": [ord(each) - ord("a") + 1 for each in values["text"]]}


def write_data(folder: Path) -> None:
    """Writes sounds of 2 to 30 letters, and a manifest as NeMo has it."""
    draw, noise = random.Random(0), np.random.default_rng(0)
    with open(folder / "train.jsonl", "w") as manifest:
        for number in range(256):
            text = "".join(draw.choices("abcdefgh", k=draw.randint(2, 30)))
            pitch = np.repeat([400.0 * (1 + ord(letter) - ord("a")) for letter in text], RATE // 10)
            tone = 0.5 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.01 * noise.standard_normal(len(pitch))
            with wave.open(str(folder / f"{number}.wav"), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", ""))
                file.writeframes((tone * 32767).astype("<i2").tobytes())
            line = {"audio_filepath": f"{number}.wav", "duration": len(tone) / RATE, "text": text}
            manifest.write(json.dumps(line) + "\n")


def main() -> None:
    """Three epochs with the CTC loss."""
    columns = {"sound": kinds.Bytes(), "text": kinds.Text(), "duration": kinds.Scalar()}
    ops = [
        PluginOp("heard", column=["sound", "text"], returns={"frames": kinds.Array(), "letters": kinds.Tokens()}),
        PadArray((MOST_FRAMES, BANDS), "frames", count="count", trim=True),
        PadTokens(30, column="letters", mask=None, count="length"),
    ]
    measure, model = nn.CTCLoss(), nn.Sequential(nn.Conv1d(BANDS, 64, 9, padding=4), nn.ReLU(), nn.Conv1d(64, 27, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        source = Jsonl(Path(folder) / "train.jsonl", columns, names={"sound": "audio_filepath"})
        train = PrepClient(
            BucketByLength(source, "duration"), ops, batch_size=16, shuffle=True, order="batch-shuffle-repeat",
            fields="dict", workers=2, plugins="plugin_sound:heard",
        )  # fmt: skip
        with train:
            for epoch in range(3):
                for batch in train:
                    scores = model(batch["frames"].mT).permute(2, 0, 1).log_softmax(-1)
                    loss = measure(scores, batch["letters"], batch["count"], batch["length"])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(f"epoch {epoch}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
