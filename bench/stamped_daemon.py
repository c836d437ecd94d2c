"""``prepserver`` with another zygote: $BENCH_WORKER, else `stamped_worker.py`. The daemon itself runs unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from prepserver import cli
from prepserver.worker import launch

_ZYGOTE = ["-P", "-m", "prepserver.worker.zygote"]


class Popen(subprocess.Popen[Any]):
    """Starts our script where the daemon means to start its zygote."""

    def __init__(self, command: list[str], **options: Any) -> None:
        if command[1:4] != _ZYGOTE:
            raise SystemExit(f"the daemon starts its zygote in another way now: {command}")
        worker = str(Path(__file__).with_name(os.environ.get("BENCH_WORKER", "stamped_worker.py")))
        super().__init__([command[0], worker, *command[4:]], **options)


class _Subprocess:
    """The module `subprocess` as `launch` sees it here."""

    def __getattr__(self, name: str) -> Any:
        return Popen if name == "Popen" else getattr(subprocess, name)


if __name__ == "__main__":
    setattr(launch, "subprocess", _Subprocess())  # noqa: B010
    sys.exit(cli.main(sys.argv[1:]))
