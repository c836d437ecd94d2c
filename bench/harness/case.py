"""What a case is, and what it is given to measure with."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.harness.photos import Photos, find_photos, write_list
from bench.harness.tables import Sheet

Figures = dict[str, Any]
"""What a case has measured, as plain data."""


@dataclass(frozen=True)
class Run:
    """One run of a case.

    Attributes:
        options: The command line's.
        scratch: A folder for this run; it is deleted afterwards.
    """

    options: argparse.Namespace
    scratch: Path

    @property
    def smoke(self) -> bool:
        """Whether the run only has to show that the case works."""
        return bool(self.options.smoke)

    @property
    def workers(self) -> int:
        return int(self.options.workers)

    def rounds(self, usual: int) -> int:
        """How many rounds to measure: ``--rounds``, else 1 for a smoke run, else `usual`."""
        return int(self.options.rounds or (1 if self.smoke else usual))

    @cached_property
    def photos(self) -> Photos:
        return find_photos(self.options.data, self.scratch)

    def listed(self, samples: int) -> Path:
        """Writes a list file of `samples` samples: all photos, repeated."""
        return write_list(self.photos, samples, self.scratch / f"{samples}.txt")

    def keep(self, found: Figures) -> None:
        """Writes the figures so far, so that a run that is cut short leaves them."""
        self.options.json.parent.mkdir(parents=True, exist_ok=True)
        self.options.json.write_text(json.dumps(found, indent=1) + "\n")

    def job(self, contender: str, listed: Path, **more: Any) -> dict[str, Any]:
        """The configuration of a job with batches of 64; see `bench.harness.contender`."""
        return {
            "contender": contender, "list": str(listed), "batch": 64, "workers": self.workers, "seed": 0,
            "runtime_dir": str(self.scratch / "run"), **more,
        }  # fmt: skip


def _no_options(_parser: argparse.ArgumentParser) -> None:
    pass


def _no_remarks(_figures: Figures) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Case:
    """One question, how it is measured, and how the figures are shown.

    Attributes:
        title: The heading in RESULTS.md; empty for a case that is not part of it.
        measure: Measures.
        sheets: Turns figures into tables.
        remarks: Turns figures into lines that are printed below the tables.
        plot: Turns figures into an SVG that is written beside them.
        options: Adds options to the command line.
    """

    title: str
    measure: Callable[[Run], Figures]
    sheets: Callable[[Figures], list[Sheet]]
    remarks: Callable[[Figures], list[str]] = _no_remarks
    plot: Callable[[Figures], str] | None = None
    options: Callable[[argparse.ArgumentParser], None] = _no_options


def say(text: str) -> None:
    """Reports progress on stderr."""
    print(text, file=sys.stderr, flush=True)
