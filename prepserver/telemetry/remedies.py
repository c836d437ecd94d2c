"""Which remedies a job's source and columns allow: a verdict must not advise what prepserver would refuse."""

from __future__ import annotations

from typing import NamedTuple

from prepserver.pipeline.caching import holds_images
from prepserver.pipeline.kinds import Array, Image, Scalar
from prepserver.pipeline.record import label_of
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import SOURCES
from prepserver.pipeline.table import TextTableSpec

_DECODED = (TextTableSpec, SOURCES["TextLines"], SOURCES["Parquet"])
"""Sources of which a worker decodes what it has read, before it has a sample."""


class Remedies(NamedTuple):
    """Which remedies there are; by default those of a folder of images."""

    images: bool = True  # samples hold images
    decoded: bool = True  # ``cache="decoded"``
    encoded: bool = False  # ``cache="encoded"`` saves more than the page cache does: reading decodes, or is remote
    packs: bool = True  # ``prepserver pack``
    shrinks: bool = True  # ``prepserver pack --max-side``
    arrays: bool = False  # numbers that could be stored as arrays


def remedies_of(source: SourceSpec, is_apart: bool = False) -> Remedies:
    """Returns the remedies for a job that reads `source`; `is_apart` is the `Pipeline.apart` of its pipeline."""
    columns, parts = source.columns, list(source.parts())
    more = {name: kind for name, kind in columns.items() if name != label_of(columns)}
    images = any(isinstance(kind, Image) for kind in more.values())
    planes = [kind for kind in more.values() if kind.is_spatial]
    is_numbers = all(isinstance(k, Scalar | Array) and getattr(k, "shape", ()) is not None for k in more.values())
    keeps = is_numbers and any(isinstance(part, SOURCES["Windows"]) for part in parts)  # what has been decoded, already
    packs = not (source.stores or is_numbers or any(isinstance(part, SOURCES["Packed"]) for part in parts))
    return Remedies(
        images=images,
        decoded=holds_images(columns) and not is_apart,
        encoded=bool(source.stores) or (not keeps and any(isinstance(part, _DECODED) for part in parts)),
        packs=packs,
        shrinks=packs and len(planes) == 1 and isinstance(planes[0], Image) and planes[0].is_photo,
        arrays=is_numbers and not any(isinstance(part, SOURCES["Arrays"]) for part in parts),
    )
