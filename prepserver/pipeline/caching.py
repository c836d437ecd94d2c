"""The content of caches: samples as they are stored, or images after the head of a pipeline.

The head is `Decode` and the ops right after it that set `is_fixed`. Its result for a sample never changes, so jobs
whose pipelines have the same head share a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Mask
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.pipeline.spec import digest_of

Form = Literal["encoded", "decoded"]

MAX_PATH_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a pipeline."""

    count: int  # ops after `Decode` that belong to it
    digest: str  # names it, and its `Decode`; equal for equal heads
    names: tuple[str, ...]  # its ops, to show to users


def head_of(pipeline: Pipeline) -> Head:
    """Return the head of a pipeline."""
    count = 0
    while count + 1 < len(pipeline.ops) and pipeline.ops[count + 1].is_fixed:
        count += 1
    ops = pipeline.ops[: count + 1]
    return Head(count, digest_of([op.to_wire() for op in ops]), tuple(type(op).__name__ for op in ops))


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A cache that a job asks for."""

    form: Form  # what it holds
    head: str = ""  # digest of the head; empty for encoded samples
    ops: tuple[str, ...] = ()  # names of the head's ops, to show to users
    folder: str | None = None  # the folder of its file; None for memory


def holds_images(columns: Columns) -> bool:
    """Return whether a cache can hold samples decoded: they have photos, and perhaps masks, but nothing beside them."""
    kinds = [kind for kind in columns.values() if kind.is_spatial]
    images = [kind for kind in kinds if isinstance(kind, Image)]
    others = [kind for kind in kinds if not isinstance(kind, Image | Mask)]
    return bool(images) and all(image.is_photo for image in images) and not others


def wanted(cache: str, pipeline: Pipeline) -> CacheSpec | None:
    """Return the cache that a job asks for; `pipeline` is what it makes of the samples.

    `cache` is ``"encoded"``, ``"decoded"``, the absolute path of a folder, or ``""`` for none. A folder holds decoded
    images if the head has an op that follows `Decode`, else encoded samples: whole images take five to ten times the
    bytes of their files.

    Raises:
        SpecError: There is no such cache for this pipeline.
    """
    if not cache:
        return None
    folder = cache if cache.startswith("/") else None
    if folder is None and cache not in ("encoded", "decoded"):
        raise SpecError("cache", cache, "must be 'encoded', 'decoded' or the path of a folder, with a slash")
    if len(cache) > MAX_PATH_CHARS or "\0" in cache:
        raise SpecError("cache", cache, f"must be a path of at most {MAX_PATH_CHARS} characters")
    has_images = holds_images(pipeline.columns) and not pipeline.apart
    head = head_of(pipeline)
    if cache == "decoded" and not has_images:
        reason = "holds photos of one size and their masks, and these samples have others: use 'encoded'"
        raise SpecError("cache", cache, reason)
    if cache == "encoded" or (folder and not (has_images and head.count)):
        return CacheSpec("encoded", folder=folder)
    return CacheSpec("decoded", head.digest, head.names, folder)
