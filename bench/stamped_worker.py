"""The interpreter of a daemon under measurement, for its zygote: workers that note when a row was full.

`delivery.py` starts the real daemon with this file in the place of ``python -m prepserver.worker.zygote``. The
workers run the real loop; only `fill` is wrapped, from here, and when a chunk's rows are full it writes the time
(CLOCK_MONOTONIC, ns) into their labels, one by one, and into their indices the time at which the chunk was
begun. So the latest label that a client reads beside its tensor is the time at which that tensor's last row
was complete: nothing in the product knows of it.

With $BENCH_PAUSE_S 16 rows are a pause of so long instead of work: the machine is quiet and the client always
waits. Without it photos are decoded, on all workers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any


def main() -> None:
    from prepserver.worker import fill as fill_room
    from prepserver.worker import loop, zygote

    real = fill_room.fill
    pause_s = float(os.environ.get("BENCH_PAUSE_S", "0"))

    def fill(stream: Any, targets: Sequence[Any], position: int, count: int, mark: Any, *step: Any) -> Any:
        began_ns = time.monotonic_ns()
        if pause_s:
            for p in range(position, position + count):
                mark(p, p)
                time.sleep(pause_s / 16)
            made = fill_room.FillResult([], 0, 0)
        else:
            made = real(stream, targets, position, count, mark, *step)
        for target in targets:
            for p in range(position, position + count):
                target.rows.row("index", p)[...] = began_ns
                # a client takes the latest of a batch: that of the last row, the last thing written
                target.rows.row("label", p)[...] = time.monotonic_ns()
        return made

    setattr(loop, "fill", fill)  # noqa: B010 - a name that the loop looks up, in this process only
    zygote.main(sys.argv[1:])


if __name__ == "__main__":
    main()
