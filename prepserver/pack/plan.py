"""What is to be packed, how, and where: written down first, so that a second run can go on or say why it cannot.

The folder is the packer's own: empty or new at first, and nothing is ever written over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from prepserver.pack.errors import PackError
from prepserver.pack.transcode import PILLOW, Transcoder
from prepserver.pipeline.sources import SourceSpec
from prepserver.source.readers.packed import PLAN_NAME

_VERSION = 1
LISTING_NAME = "listing"
"""Folder of the source's listing, in the folder of the dataset, while it is packed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every run on a folder must agree on.

    Attributes:
        source: The dataset, as `to_wire` gives it.
        samples: Number of its samples.
        content_digest: Of its labels, names and classes.
        transcoder: ``jpegtran`` or ``pillow``.
        segment_mcus: As in `Transcoder`.
        quality: As in `Transcoder`.
        max_side: As in `Transcoder`.
        shard_bytes: Size of a shard.
    """

    source: dict[str, Any]
    samples: int
    content_digest: str
    transcoder: str
    segment_mcus: int
    quality: int
    max_side: int | None
    shard_bytes: int

    @classmethod
    def of(cls, spec: SourceSpec, samples: int, content_digest: str, how: Transcoder, shard_bytes: int) -> Self:
        """Put a plan together."""
        transcoder = PILLOW if how.jpegtran is None else "jpegtran"
        return cls(
            spec.to_wire(),
            samples,
            content_digest,
            transcoder,
            how.segment_mcus,
            how.quality,
            how.max_side,
            shard_bytes,
        )


class Workplace:
    """The folder of a dataset that is being packed, locked against a second packer.

    Args:
        folder: Made if it is not there.

    Attributes:
        folder: The folder.

    Raises:
        PackError: It cannot be made, holds something else, or somebody packs into it now.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan_path = folder / PLAN_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = os.listdir(folder)
            if names and PLAN_NAME not in names:
                raise PackError(f"{folder} is not empty and holds no packed dataset; name a new folder", usage=True)
            # A lock of this process, not of the file: the crew, forked later, does not hold it.
            self._file = os.open(self._plan_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise PackError(f"cannot pack into {folder}: {error.strerror}") from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise PackError(f"another process packs into {folder} now") from error

    def settle(self, plan: Plan) -> bool:
        """Write the plan down, or compare it with that of an earlier run.

        Returns:
            Whether an earlier run began with this plan.

        Raises:
            PackError: An earlier run had another plan, or the folder cannot be written.
        """
        wanted = {"version": _VERSION, **asdict(plan)}
        text = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            found = json.loads(text) if text else None
        except ValueError:
            found = None  # killed while it was written: nothing else has been, yet
        if found is None:
            try:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, json.dumps(wanted, indent=1).encode(), 0)
                os.fsync(self._file)
            except OSError as error:
                raise PackError(f"cannot pack into {self.folder}: {error.strerror}") from error
            return False
        if not isinstance(found, dict):
            raise PackError(f"{self._plan_path} is not a plan of prepserver pack; name a new folder", usage=True)
        different = [name for name in wanted if found.get(name) != wanted[name]]
        if "version" in different:
            raise PackError(f"{self.folder} was begun by another version of prepserver; name a new folder", usage=True)
        if different:
            what = ", ".join(f"{name} was {_shown(found.get(name))}, is {_shown(wanted[name])}" for name in different)
            raise PackError(
                f"{self.folder} was begun otherwise: {what}. Use the same source and options to go on, or a new folder",
                usage=True,
            )
        return True

    def abandon(self) -> None:
        """Leave nothing behind if nothing has been planned yet: a wrong path makes no folder."""
        if os.fstat(self._file).st_size == 0:
            shutil.rmtree(self.folder / LISTING_NAME, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._plan_path.unlink()
                self.folder.rmdir()

    def close(self) -> None:
        """Give up the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."
