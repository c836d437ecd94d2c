"""``prepserver`` with workers that do something else than decode, for cases that measure the rest of the path.

``python -m bench.harness.stand_in ARGUMENT...`` is the real command line, and the daemon starts its zygote by way of
this module. The real loop of real worker processes runs; only the function that fills rows is replaced, from here.
$BENCH_FILL says by what, and $BENCH_SAMPLE_S how long a sample takes:

- ``nothing``: rows are left as they are. This measures the path without any memory traffic of the workers.
- ``copy``: each row is copied from one of 64 ready rows in the worker's memory, as from a cache of decoded images.
- ``sleep``: one sleep per chunk stands for its samples: such a worker takes no core.
- ``stamp``: as ``sleep``, with a sleep for each row, or real decoding where a sample takes 0 seconds. When a chunk's
  rows are full, the time (CLOCK_MONOTONIC, ns) is written into the label of each, one by one, and the time at which
  the chunk was begun into its index. So the latest label in a batch tells when its last row was complete.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

_READY_ROWS = 64
_ZYGOTE = ["-P", "-m", "prepserver.worker.zygote"]
_OURS = ["-P", "-m", "bench.harness.stand_in", "zygote"]


class _Popen(subprocess.Popen[Any]):
    """Starts this module where the daemon means to start its zygote."""

    def __init__(self, command: list[str], **options: Any) -> None:
        if command[1:4] != _ZYGOTE:
            raise SystemExit(f"the daemon starts its zygote in another way now: {command}")
        super().__init__([command[0], *_OURS, *command[4:]], **options)


class _Subprocess:
    """The module `subprocess` as `prepserver.worker.launch` sees it here."""

    def __getattr__(self, name: str) -> Any:
        return _Popen if name == "Popen" else getattr(subprocess, name)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["zygote"]:
        _run_zygote(arguments[1:])
    else:
        from prepserver import cli
        from prepserver.worker import launch

        setattr(launch, "subprocess", _Subprocess())  # noqa: B010 - a name that it looks up, in this process only
        sys.exit(cli.main(arguments))


def _run_zygote(arguments: list[str]) -> None:
    import numpy.random  # now: a worker in its sandbox can import nothing

    del numpy
    from prepserver.worker import fill as fill_room
    from prepserver.worker import loop, zygote

    real, kind, sample_s = fill_room.fill, os.environ["BENCH_FILL"], float(os.environ["BENCH_SAMPLE_S"])

    def fill(stream: Any, targets: Sequence[Any], position: int, count: int, mark: Any, *step: Any) -> Any:
        began_ns = time.monotonic_ns()
        positions = range(position, position + count)
        if kind == "copy":
            _copy(targets, positions)
        elif kind == "sleep":
            time.sleep(sample_s * count)
        elif kind == "stamp" and sample_s:
            for p in positions:
                mark(p, p)
                time.sleep(sample_s)
        decodes = kind == "stamp" and not sample_s
        made = real(stream, targets, position, count, mark, *step) if decodes else fill_room.FillResult([], 0, 0)
        if kind == "stamp":
            _stamp(targets, positions, began_ns)
        return made

    setattr(loop, "fill", fill)  # noqa: B010 - a name that the loop looks up, in this process only
    zygote.main(arguments)


def _stamp(targets: Sequence[Any], positions: range, began_ns: int) -> None:
    for target in targets:
        for p in positions:
            target.rows.row("index", p)[...] = began_ns
            # a client takes the latest of a batch: the label of the last row is the last thing written
            target.rows.row("label", p)[...] = time.monotonic_ns()


def _copy(targets: Sequence[Any], positions: range) -> None:
    for target in targets:
        for field in (field for maker in target.makers for field in maker.fields):
            ready = _ready_rows(field.shape)
            for p in positions:
                target.rows.row(field.name, p)[...] = ready[p % _READY_ROWS]


@functools.cache
def _ready_rows(shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, 256, (_READY_ROWS, *shape), np.uint8)


if __name__ == "__main__":
    main(sys.argv[1:])
