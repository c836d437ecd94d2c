"""The data in the forms that contenders read, written once and kept: not timed, but weighed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from roster import FORMS
from server import environment
from venvs import Pythons

_LIMIT_S = 900.0


class Forms:
    """Forms of one list of samples.

    Args:
        cache: Holds them by a digest of the samples.
        list_path: The list.
        workers: Processes that write.
    """

    def __init__(self, cache: Path, list_path: Path, workers: int, pythons: Pythons) -> None:
        self._list, self._workers, self._pythons = list_path, workers, pythons
        self._folder = cache / _digest(list_path)

    def ensure(self, name: str) -> Path:
        """Where the form is; writes it if it is not there.

        Raises:
            subprocess.SubprocessError: The writer failed; it said why on stderr.
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
            [self._pythons.of(form.venv), str(Path(__file__).with_name("build.py"))], input=json.dumps(config) + "\n",
            env=environment(), text=True, check=True, timeout=_LIMIT_S, stdout=subprocess.PIPE,
        )  # fmt: skip
        part.rename(path)
        counted = json.loads(done.stdout)
        self._note(name).write_text(json.dumps(_nbytes(path) if counted is None else counted))
        return path

    def nbytes(self, name: str) -> int:
        """What all samples of a form take."""
        found: int = json.loads(self._note(name).read_text())
        return found

    def _note(self, name: str) -> Path:
        """Written last: with it a form is whole."""
        return self._folder / f"{name}.bytes"


def warm(path: Path) -> None:
    """Reads all of it, so that it is in the page cache."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as data:
                while data.read(1 << 24):
                    pass


def _nbytes(path: Path) -> int:
    """Of a file or of all files in a folder."""
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def _digest(list_path: Path) -> str:
    """Of labels and contents: synthetic photos lie elsewhere each time."""
    contents: dict[str, bytes] = {}
    found = hashlib.sha256()
    for line in list_path.read_text().splitlines():
        file, label = line.split("\t")
        if file not in contents:
            contents[file] = hashlib.sha256(Path(file).read_bytes()).digest()
        found.update(contents[file] + label.encode() + b"\n")
    return found.hexdigest()[:12]
