"""Plug-ins for tests, well-behaved and not: imported by its own name, from a folder that a test puts on the path."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from typing import Any

import numpy as np
import torch

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def noise(image: Pixels, rng: np.random.Generator, most: int = 50) -> Pixels:
    """Adds random numbers, in place: an array from `plugins` is contiguous, so this is no copy."""
    flat = image.reshape(-1)
    flat += rng.integers(0, most, flat.shape, np.uint8)
    return image


def halved(image: Pixels, rng: np.random.Generator) -> torch.Tensor:
    """Every second pixel, as floats, seen backwards: a view of other strides, as a tensor."""
    return torch.from_numpy(image[::-2, ::2].copy()).to(torch.float32) / 255


def spelled(text: str, rng: np.random.Generator, length: int) -> list[int]:
    """Code points, filled up with random ones."""
    points = [ord(c) for c in text][:length]
    return [*points, *rng.integers(1000, 2000, length - len(points)).tolist()]


def odd(image: Pixels, rng: np.random.Generator, how: str, at: int) -> Any:
    """Misbehaves at the sample whose pixels are `at`."""
    return misbehave(how, image) if at in (-1, image[0, 0, 0]) else image


def slow(image: Pixels, rng: np.random.Generator, seconds: float) -> Pixels:
    """Takes its time."""
    time.sleep(seconds)
    return image


def joint(values: dict[str, Any], rng: np.random.Generator, how: str = "") -> Any:
    """Treats all arrays alike: one draw decides whether they are reversed. A text becomes its length, twice."""
    turn = -1 if rng.integers(2) else 1
    if "text" in values:
        length = len(values.pop("text"))
        values |= {"length": length, "half": [length / 2]}
    values = {name: value[::turn] if isinstance(value, np.ndarray) else value for name, value in values.items()}
    if how == "misses":
        values.popitem()
    return None if how == "nothing" else values


def joint_block(block: dict[str, Any], rngs: list[np.random.Generator], how: str = "") -> Any:
    """As `joint`, for a block of samples."""
    assert {len(values) for values in block.values()} == {len(rngs)}
    rows = [joint({name: values[k] for name, values in block.items()}, rng) for k, rng in enumerate(rngs)]
    return {name: [row[name] for row in rows[how == "short" :]] for name in rows[0]}


def misbehave(how: str, value: Any) -> Any:
    """What code of one's own may do."""
    match how:
        case "raises":
            raise ValueError("too dark: \udcff\n!")
        case "raises of storage":
            raise FileNotFoundError("no lookup table")
        case "asks numpy for too much" | "asks torch for too much":
            return (np if "numpy" in how else torch).empty(1 << 57)
        case "hangs":
            time.sleep(600)
        case "leaves":
            os._exit(75)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "shape":
            return value[:3]
        case "dtype":
            return value.astype(np.float32)
        case "nothing":
            return None
    return value


class Numbers:
    """Images whose pixels are their index, with a text; labels count backwards."""

    classes: tuple[str, ...] = ("even", "odd")

    def __init__(self, n: int = 24, how: str = "", at: int = -1, side: int = 8, read_s: float = 0.0) -> None:
        if how == "no dataset":
            raise RuntimeError("the database is down")
        if how == "names its limit":
            self.classes = (str(resource.getrlimit(resource.RLIMIT_DATA)[0]), "odd")
        self.n, self.how, self.at, self.side, self.read_s = n, how, at, side, read_s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample; with random numbers of all generators that a Dataset may use by itself."""
        if self.read_s:
            time.sleep(self.read_s)
        image = np.full((self.side, self.side, 3), index, np.uint8)
        if index == self.at:
            image = misbehave(self.how, image)
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return {"image": image, "text": f"sample {index}", "drawn": np.array(drawn, np.float32), "label": index % 2}


def pairs(n: int) -> Any:
    """A Dataset of (tensor, label), made by a function."""
    return [(torch.full((3, 4, 4), index, dtype=torch.uint8), index) for index in range(n)]


def strays(n: int) -> Any:
    """Samples that a careless Dataset may give, by their index; all others are alike."""
    even = {
        "image": np.full((16, 16, 3), 7, np.uint8), "mask": np.ones((16, 16), np.uint8),
        "boxes": np.array([[5, 5, 9, 9]], np.float32), "labels": np.array([1]), "drawn": np.zeros(2, np.float32),
    }  # fmt: skip
    odd: dict[int, dict[str, Any]] = {
        1: {"boxes": np.array([[-9, -9, -1, -1], [6, 6, 90, 90]], np.float32), "labels": np.array([2, 3])},
        2: {"mask": np.zeros((16, 16), np.uint8), "boxes": np.empty((0, 4), np.float32), "labels": np.empty(0, int)},
        3: {"boxes": np.array([[5, np.nan, 9, 9]], np.float32)},
        4: {"drawn": np.array([np.nan, np.inf], np.float32)},
        5: {"mask": np.empty((0, 0), np.uint8)},
        6: {"labels": np.array([np.nan])},
    }
    return [even | odd.get(index, {}) for index in range(n)]


def shaken(block: Any, rngs: list[np.random.Generator], how: str = "", at: int = -1, least: int = 1) -> Any:
    """Adds random numbers to a block of arrays, in place. Misbehaves at the sample that begins with `at`."""
    assert len(block) == len(rngs) >= least
    if at in [int(each[0]) for each in block]:
        misbehave(how, block)
    for each, rng in zip(block, rngs, strict=True):
        each += rng.integers(0, 50, each.shape)
    return block[:-1] if how == "short" else block


prepserver_ops = {
    "noise": noise, "halved": halved, "spelled": spelled, "odd": odd, "slow": slow, "shaken": shaken,
    "joint": joint, "joint_block": joint_block,
}  # fmt: skip
prepserver_sources = {"numbers": Numbers, "pairs": pairs, "strays": strays}
