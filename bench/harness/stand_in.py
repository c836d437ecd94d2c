"""Workers that do not decode: the rest of the path under measurement, by `rows.py` and `scaling.py`.

As `stamped_worker.py`, this file stands in the place of the daemon's zygote; the real loop of real worker processes
runs, and `fill` alone is replaced. By $BENCH_FILL:

- ``nothing``: rows are left as they are. What is measured is the path without any memory traffic of workers.
- ``copy``: each row is a copy of one of 64 ready rows in the worker's own memory, as from a cache of decoded images.
- ``sleep``: a pause of $BENCH_SAMPLE_S for each row, in one sleep for a chunk: a worker as fast as that, which takes
  no core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_READY_ROWS = 64


def main() -> None:
    import numpy as np

    from prepserver.worker import fill as fill_room
    from prepserver.worker import loop, zygote

    sample_s = float(os.environ.get("BENCH_SAMPLE_S", "0"))
    ready: dict[tuple[int, ...], Any] = {}

    def nothing(_targets: Sequence[Any], _position: int, _count: int) -> None:
        pass

    def copy(targets: Sequence[Any], position: int, count: int) -> None:
        for target in targets:
            for field, maker in target.makers.items():
                shape = maker.row.shape
                if shape not in ready:
                    ready[shape] = np.random.default_rng(0).integers(0, 256, (_READY_ROWS, *shape), np.uint8)
                for p in range(position, position + count):
                    target.rows.row(field, p)[...] = ready[shape][p % _READY_ROWS]

    def sleep(_targets: Sequence[Any], _position: int, count: int) -> None:
        time.sleep(sample_s * count)

    kinds: dict[str, Callable[[Sequence[Any], int, int], None]] = {"nothing": nothing, "copy": copy, "sleep": sleep}
    stand_in = kinds[os.environ["BENCH_FILL"]]

    def fill(_stream: Any, targets: Sequence[Any], position: int, count: int, *_marks: Any) -> Any:
        stand_in(targets, position, count)
        return fill_room.FillResult([], 0, 0)

    setattr(loop, "fill", fill)  # noqa: B010 - a name that the loop looks up, in this process only
    zygote.main(sys.argv[1:])


if __name__ == "__main__":
    main()
