"""The Python interpreters of the contenders: one venv for each file in requirements/.

``python -m bench.peers.venvs [NAME ...]`` makes those named, or all, below bench/out/venvs (``--into DIR``: elsewhere).
Packages come from where pip's configuration says; docs/benchmarks.md names what some of them need besides pip.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from bench.harness.fingerprint import OUT
from bench.peers.roster import OWN

REQUIREMENTS = Path(__file__).with_name("requirements")
VENVS = OUT / "venvs"

# Says which of the modules named are missing, and the versions of all packages that the others come from.
_LOOK = """
import importlib.util, importlib.metadata as m, json, sys
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
missing = [name for name in sys.argv[1:] if not there(name)]
owners = m.packages_distributions()
names = {d for name in sys.argv[1:] for d in owners.get(name.split(".")[0], [])}
print(json.dumps({"missing": missing, "versions": {name: m.version(name) for name in sorted(names)}}))
"""


class Pythons:
    """Finds the interpreter of each venv.

    Args:
        folder: Holds the venvs by name.
        given: Interpreters that replace them.
    """

    def __init__(self, folder: Path, given: Mapping[str, str]) -> None:
        self._folder = folder
        self._given = {OWN: sys.executable, **given}

    def of(self, name: str) -> str:
        return self._given.get(name, str(self._folder / name / "bin" / "python"))

    def look(self, name: str, needs: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
        """(modules of `needs` that are missing, versions of those that are there)."""
        if not Path(self.of(name)).exists():
            return list(needs) or ["python"], {}
        done = subprocess.run([self.of(name), "-c", _LOOK, *needs], capture_output=True, text=True, timeout=60)
        if done.returncode:
            return list(needs), {}
        found = json.loads(done.stdout)
        return found["missing"], found["versions"]


def main() -> None:
    known = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description="Makes the contenders' venvs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--into", type=Path, default=VENVS, help="the folder that will hold them")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no requirements for {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    failed = [name for name in arguments.names or known if not make(name, arguments.into / name)]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the others can be used")


def make(name: str, folder: Path) -> bool:
    print(f"== {name}: {folder}", flush=True)
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-r", str(REQUIREMENTS / f"{name}.txt")]
    return subprocess.run(command).returncode == 0


if __name__ == "__main__":
    main()
