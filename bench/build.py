"""Writes the data in the form that a contender reads, in that contender's interpreter. Started by `forms.py`.

Its stdin brings the configuration; its stdout says how many bytes all samples take, if the contender counts them.
"""

from __future__ import annotations

import json
import os
import sys

import contenders


def main() -> None:
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # some writers print
        config = json.loads(sys.stdin.readline())
        print(json.dumps(contenders.load(config["contender"]).build(config)), file=out)


if __name__ == "__main__":  # some writers start processes that import this again
    main()
