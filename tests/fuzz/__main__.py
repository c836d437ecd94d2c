"""Fuzzes the compiled kernels: ``python -m tests.fuzz``, or ``make fuzz``. docs/testing.md explains the output."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from PIL import _imaging

from tests.fuzz.build import HOW, OUT, ROOT, NotBuilt, build
from tests.fuzz.driver import DIED
from tests.fuzz.mutate import new_input, split

CORPUS = Path(__file__).parent / "corpus"
GROWN, FOUND = OUT / "corpus", OUT / "found"
_KEPT_OF_A_KIND = 3
_OPTIONS = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256:quarantine_size_mb=4"


class Driver:
    """The process that examines inputs; an input may kill it.

    Args:
        libraries: The kernels and the libjpeg that they are to use; none for those that are installed.
        preloaded: What is to be loaded before all else.
        simd: Whether all libjpegs may use SIMD; coefficients that are in no picture overflow in other ways there.
    """

    def __init__(self, libraries: Sequence[str] = (), preloaded: str = "", simd: bool = True) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process runs
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": preloaded,
            "ASAN_OPTIONS": _OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=1",
            **({} if simd else {"JSIMD_FORCENONE": "1"}),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.driver", *libraries],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
        )  # fmt: skip
        self._answer()

    def ask(self, data: bytes) -> int | str:
        """Have an input examined: the number of branches that it is the first to take, or the report of its finding."""
        assert self._process.stdin is not None
        begins = self._errors.seek(0, os.SEEK_END)
        self._process.stdin.write(len(data).to_bytes(4, "little") + data)
        self._process.stdin.flush()
        answer = self._answer()
        if answer != DIED:
            return int(answer)
        self._errors.seek(begins)
        return self._errors.read().decode(errors="replace")

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(f"the driver ended:\n{self._errors.read().decode(errors='replace')}")
        return line

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def kind_of(report: str) -> str:
    """The line by which findings with the same cause are recognised: the first one that names it."""
    lines = (line for line in report.splitlines() if "SUMMARY: " in line or "runtime error: " in line)
    return next(lines).split("SUMMARY: ")[-1].replace(f"{ROOT}/", "")


class Run:
    """One run: the corpus, and what was found.

    Args:
        driver: Who examines.
        places: Files and folders with the corpus.
    """

    def __init__(self, driver: Driver, places: Sequence[Path]) -> None:
        self._driver = driver
        found = ([place] if place.is_file() else sorted(place.rglob("*")) for place in places)
        self.files = [file for files in found for file in files if file.is_file()]
        self.corpus: list[bytes] = []
        self.found: Counter[str] = Counter()
        self.runs = self.branches = 0
        self._began = self._told = time.monotonic()

    def replay(self) -> None:
        """Examine the corpus."""
        for file in self.files:
            data = file.read_bytes()
            self._examine(data, file)
            self.corpus.append(data)

    def fuzz(self, seed: int, seconds: float) -> None:
        """Examine new inputs for so long; those that take new branches join the corpus."""
        GROWN.mkdir(parents=True, exist_ok=True)
        while time.monotonic() - self._began < seconds:
            data = new_input(Random(f"{seed}/{self.runs}"), self.corpus)
            if self._examine(data):
                self.corpus.append(data)
                (GROWN / _name(data)).write_bytes(data)
            if time.monotonic() - self._told > 5:
                self._told = time.monotonic()
                _say(self.line())

    def line(self) -> str:
        """How it goes."""
        took = time.monotonic() - self._began
        return (
            f"{took:.0f} s: {self.runs} inputs, {self.runs / took:.0f}/s, corpus {len(self.corpus)}, "
            f"branches {self.branches}, findings {len(self.found)}"
        )

    def _examine(self, data: bytes, file: Path | None = None) -> bool:
        """Have it examined; say if it took new branches."""
        self.runs += 1
        answer = self._driver.ask(data)
        if isinstance(answer, int):
            self.branches += answer
            return answer > 0
        kind = kind_of(answer)
        self.found[kind] += 1
        if self.found[kind] <= _KEPT_OF_A_KIND:
            if file is None:
                FOUND.mkdir(parents=True, exist_ok=True)
                file = FOUND / _name(data)
                file.write_bytes(data)
                file.with_suffix(".txt").write_text(answer)
            where = os.path.relpath(file)
            _say(f"FOUND {kind}\n  input: {where}\n  again: python -m tests.fuzz --replay {where}")
        return False


def shrunk(driver: Driver, data: bytes) -> bytes:
    """The smallest input found that still shows the same."""
    report = driver.ask(data)
    if isinstance(report, int):
        sys.exit("it shows nothing")
    kind = kind_of(report)
    pieces = split(data) if data.startswith(b"\xff\xd8") else [data]
    for unit in (0, 64, 16, 4, 1):
        if unit:
            whole = b"".join(pieces)
            pieces = [whole[k : k + unit] for k in range(0, len(whole), unit)]
        for k in reversed(range(len(pieces))):
            fewer = pieces[:k] + pieces[k + 1 :]
            answer = driver.ask(b"".join(fewer))
            if isinstance(answer, str) and kind_of(answer) == kind:
                pieces = fewer
    return b"".join(pieces)


def _instrumented(whole: bool) -> Driver:
    """A driver of what is built for this; `whole`: not without libjpeg."""
    try:
        built = build()
    except NotBuilt as error:
        sys.exit(f"not built: {error}")
    if built.libjpeg is None and whole:
        sys.exit(f"libjpeg is to be instrumented, too: {HOW}")
    libjpeg = f"{built.libjpeg}, too" if built.libjpeg else f"Pillow's own, NOT instrumented (for that, {HOW})"
    _say(f"kernels: under ASan and UBSan; libjpeg: {libjpeg}")
    return Driver(
        [str(built.kernels), str(built.libjpeg or _imaging.__file__)], str(built.runtime), built.libjpeg is None
    )


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12] + (".jpg" if data.startswith(b"\xff\xd8") else ".psr")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the same inputs again, while the corpus is the same")
    parser.add_argument(
        "--replay",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="only these; if none are named, what is kept in the repository",
    )
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="make a finding as small as it can be, in place")
    parser.add_argument("--libjpeg", action="store_true", help="fail where libjpeg cannot be instrumented")
    parser.add_argument(
        "--installed", action="store_true", help="take the installed kernels, which are not instrumented"
    )
    arguments = parser.parse_args()
    driver = Driver() if arguments.installed else _instrumented(arguments.libjpeg)
    if arguments.shrink is not None:
        arguments.shrink.write_bytes(shrunk(driver, arguments.shrink.read_bytes()))
        return 0
    run = Run(driver, [CORPUS, GROWN] if arguments.replay is None else arguments.replay or [CORPUS])
    run.replay()
    if arguments.replay is None:
        run.fuzz(arguments.seed, arguments.seconds)
    driver.close()
    _say(run.line())
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main())
