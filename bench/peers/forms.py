"""The data in the forms that contenders read. They are written once and kept; their size is reported."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from bench.harness.server import environment
from bench.peers.roster import FORMS
from bench.peers.venvs import Pythons

_LIMIT_S = 900.0


class Forms:
    """The forms of one list of samples.

    Args:
        cache: Holds them by a digest of the samples.
        list_path: The list.
        workers: The number of processes that write.
        pythons: Finds the contenders' interpreters.
    """

    def __init__(self, cache: Path, list_path: Path, workers: int, pythons: Pythons) -> None:
        self._list, self._workers, self._pythons = list_path, workers, pythons
        self._folder = cache / _digest(list_path)

    def ensure(self, name: str) -> Path:
        """The path of a form, which is written if it is not there.

        Raises:
            subprocess.SubprocessError: The writer failed; its stderr says why.
        """
        path, part = self._folder / name, self._folder / f"{name}.part"
        if self._note(name).exists():
            return path
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in (path, part):  # of a run that was stopped
            if old.is_dir():
                shutil.rmtree(old)
            old.unlink(missing_ok=True)
        form = FORMS[name]
        config = {
            "contender": form.module, "list": str(self._list), "out": str(part), "workers": self._workers,
            **form.options,
        }  # fmt: skip
        done = subprocess.run(
            [self._pythons.of(form.venv), "-m", "bench.harness.job", "writer"], input=json.dumps(config) + "\n",
            env=environment(), text=True, check=True, timeout=_LIMIT_S, stdout=subprocess.PIPE,
        )  # fmt: skip
        part.rename(path)
        counted = json.loads(done.stdout)
        self._note(name).write_text(json.dumps(_nbytes(path) if counted is None else counted))
        return path

    def nbytes(self, name: str) -> int:
        """The bytes of all samples in a form."""
        found: int = json.loads(self._note(name).read_text())
        return found

    def _note(self, name: str) -> Path:
        """This file is written last: with it a form is complete."""
        return self._folder / f"{name}.bytes"


def warm(path: Path) -> None:
    """Reads all of a form, so that it is in the page cache."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as data:
                while data.read(1 << 24):
                    pass


def _nbytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def _digest(list_path: Path) -> str:
    """Depends on labels and contents, not on paths: synthetic photos lie elsewhere each time."""
    contents: dict[str, bytes] = {}
    found = hashlib.sha256()
    for line in list_path.read_text().splitlines():
        file, label = line.split("\t")
        if file not in contents:
            contents[file] = hashlib.sha256(Path(file).read_bytes()).digest()
        found.update(contents[file] + label.encode() + b"\n")
    return found.hexdigest()[:12]
