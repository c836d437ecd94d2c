"""The plan of a packed dataset, written first, so that a later run can continue or say why it cannot.

The folder belongs to the packer: it is empty or new at first, and nothing in it is ever overwritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from prepserver.pack import PackError
from prepserver.source.readers.packed import PLAN_NAME

_VERSION = 1
LISTING_NAME = "listing"  # folder of the source's listing, in the folder of the dataset, while it is packed


class Workplace:
    """The folder of a dataset that is being packed, made if it does not exist, and locked against a second packer.

    Raises:
        PackError: It cannot be made, holds something else, or another process packs into it now.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan_path = folder / PLAN_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = os.listdir(folder)
            if names and PLAN_NAME not in names:
                raise PackError(f"{folder} is neither empty nor a packed dataset; name a new folder", usage=True)
            # The lock belongs to this process, not to the file, so the crew, forked later, does not hold it.
            self._file = os.open(self._plan_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise PackError(f"{folder} is not a folder; name a new one", usage=True) from error
        except OSError as error:
            raise PackError(f"cannot pack into {folder}: {error.strerror}") from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise PackError(f"another process is packing into {folder}") from error

    def settle(self, plan: Mapping[str, object]) -> None:
        """Write down the plan, which holds values for JSON, or compare it with that of an earlier run.

        Raises:
            PackError: An earlier run had another plan.
            OSError: The folder cannot be written.
        """
        wanted = {"version": _VERSION, **plan}
        text = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            found = json.loads(text) if text else None
        except ValueError:
            found = None  # that run was killed while it wrote the plan, and has written nothing else
        if found is None:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(wanted, indent=1).encode(), 0)
            os.fsync(self._file)
            return
        if not isinstance(found, dict):
            raise PackError(f"{self._plan_path} is not a plan of prepserver pack; name a new folder", usage=True)
        different = [name for name in wanted if found.get(name) != wanted[name]]
        if "version" in different:
            raise PackError(f"{self.folder} was begun by another version of prepserver; name a new folder", usage=True)
        if different:
            what = ", ".join(f"{name} was {_shown(found.get(name))}, is {_shown(wanted[name])}" for name in different)
            raise PackError(
                f"{self.folder} was begun with another source or other options: {what}. Use the same ones to continue, "
                "or a new folder",
                usage=True,
            )

    def abandon(self) -> None:
        """Remove the folder if no plan is written yet: a wrong path leaves no folder behind."""
        if os.fstat(self._file).st_size == 0:
            shutil.rmtree(self.folder / LISTING_NAME, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._plan_path.unlink()
                self.folder.rmdir()

    def close(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."
