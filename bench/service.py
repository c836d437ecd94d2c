"""A contender's process that serves the jobs of others: what a daemon is to prepserver. Started by `cells.py`.

Speaks like `job.py`: its stdin brings the configuration, its stdout says ``ready`` when it listens. It ends with
its stdin.
"""

from __future__ import annotations

import json
import os
import sys

import contenders
from job import end_with_parent


def main() -> None:
    end_with_parent()
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # some contenders print
        config = json.loads(sys.stdin.readline())
        contender = contenders.load(config["contender"])
        contender.prepare(config)
        keep = contender.serve(config)
        print("ready", file=out, flush=True)
        sys.stdin.readline()
    del keep
    os._exit(0)  # servers with threads of their own may take their time; nothing of theirs is to be kept


if __name__ == "__main__":
    main()
