"""Cells of the cases `peers` and `versus`: a contender of the roster, run once."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from bench.harness.jobs import serving
from bench.harness.measure import run_cell
from bench.harness.photos import Photos, write_list
from bench.harness.server import running_server
from bench.peers.forms import Forms, warm
from bench.peers.roster import FORMS, PEERS
from bench.peers.venvs import Pythons

_BATCH = 64
_LIMIT_S = 60.0  # a contender that takes longer besides warm-up and window counts as hung
_LINES = 12


class Cells:
    """Runs one contender once: its processes, its data, a window.

    Args:
        photos: The photos that all read.
        samples: Samples in an epoch: the photos, again and again.
        workers: Processes or threads of each loader.
        pythons: Finds the contenders' interpreters.
        cache: Keeps the data in the contenders' forms.
        scratch: Holds the list, sockets, logs.
    """

    def __init__(
        self, photos: Photos, samples: int, workers: int, pythons: Pythons, cache: Path, scratch: Path
    ) -> None:
        self._samples, self._scratch, self._workers, self._pythons = samples, scratch, workers, pythons
        self._list = write_list(photos, samples, scratch / "list.txt")
        self._forms = Forms(cache, self._list, workers, pythons)
        self._log = scratch / "jobs.log"
        self._photos = len(photos.files)
        self._kb = photos.nbytes / len(photos.files) / 1000

    def why_not(self, key: str, versions: dict[str, str]) -> str:
        """Why a contender cannot take part, or ``""``. Adds its packages to `versions`, and writes its data."""
        peer = PEERS[key]
        missing, found = self._pythons.look(peer.venv, peer.needs)
        if missing:
            return (
                f"{', '.join(missing)} not installed: python -m bench.peers.venvs {peer.venv}, see docs/benchmarks.md"
            )
        versions.update(found)
        if peer.form is not None:
            try:
                warm(self._forms.ensure(peer.form))
            except (OSError, subprocess.SubprocessError) as error:
                return f"its data could not be written: {error}"
        return ""

    def run(self, key: str, warm_s: float, window_s: float) -> dict[str, Any]:
        """The figures of `run_cell`, and ``kb_per_image``, the size of an image on disk.

        Raises:
            SystemExit, OSError, subprocess.SubprocessError: It failed or hung; `last_lines` may say why.
        """
        peer = PEERS[key]
        config: dict[str, Any] = {
            "contender": peer.module, "list": str(self._list), "batch": _BATCH, "workers": self._workers, "seed": 0,
            "runtime_dir": str(self._scratch / "run"), "python": self._pythons.of(peer.venv), "log": str(self._log),
            **peer.options,
        }  # fmt: skip
        kb_per_image = self._kb
        if peer.form is not None:
            config["data"] = str(self._forms.ensure(peer.form))
            images = self._photos if FORMS[peer.form].once else self._samples
            kb_per_image = self._forms.nbytes(peer.form) / images / 1000
        self._log.write_text("")
        limit_s = _LIMIT_S + warm_s + window_s
        with contextlib.ExitStack() as stack:
            # A daemon for each cell: an idle one would share torch's pages with the other contenders.
            is_own = peer.module == "prepserver"
            server = stack.enter_context(running_server(self._scratch, self._workers)) if is_own else None
            if peer.serves:
                config["port"] = _free_ports(4)
            service = stack.enter_context(serving(config, limit_s)) if peer.serves else None
            configs = [{**config, "number": number} for number in range(peer.jobs)]
            found = run_cell(configs, warm_s, window_s, server, service=service, limit_s=limit_s)
        return {**found, "kb_per_image": kb_per_image}

    def last_lines(self) -> str:
        """The last lines that the processes of the last run wrote to stderr."""
        return "\n".join(f"  {text}" for text in self._log.read_text(errors="replace").splitlines()[-_LINES:])


def _free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that are free now."""
    for first in itertools.count(20_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("unreachable")


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Parses the names of some contenders on the command line, with commas between them."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
        return names

    return parse
