"""The ops of a pipeline, by name: the public list. What is not in it cannot be asked for over the wire."""

from __future__ import annotations

from prepserver.pipeline.color import ColorJitter, Decode, Grayscale, Normalize, ToDtype, ToLayout
from prepserver.pipeline.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from prepserver.pipeline.op import Op

OPS: dict[str, type[Op]] = {
    op.__name__: op
    for op in (
        Decode,
        RandomResizedCrop,
        Resize,
        CenterCrop,
        RandomCrop,
        Pad,
        RandomHorizontalFlip,
        RandomVerticalFlip,
        ColorJitter,
        Grayscale,
        Normalize,
        ToDtype,
        ToLayout,
    )
}
"""Op classes by their wire name."""

__all__ = [
    "OPS",
    "CenterCrop",
    "ColorJitter",
    "Decode",
    "Grayscale",
    "Normalize",
    "Op",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToLayout",
]
