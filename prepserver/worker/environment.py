"""The environment of the zygote and its children: one thread for computing, no GPU, and the same package as here."""

from __future__ import annotations

import os
from pathlib import Path

import prepserver

_ONE_THREAD = {
    # One compute thread per worker: with more, two workers on two cores were 29 times slower.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "TOKIO_WORKER_THREADS": "1",  # of reads from object stores, for which one is plenty
    # No child ever makes a CUDA context, whatever it imports.
    "CUDA_VISIBLE_DEVICES": "",
}


def environment() -> dict[str, str]:
    """This process's, changed for the children."""
    env = {**os.environ, **_ONE_THREAD}
    root = Path(prepserver.__file__).resolve().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        # In a checkout: the option -P keeps the current directory, and so this package, out of the child's path.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(root))))
    return env
