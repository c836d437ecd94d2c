"""``python -m tests.golden`` computes all digests again; with ``--check`` it compares them and shows what differs.

To add a pipeline, add its wire form (``Pipeline.from_ops(ops, views).to_wire()``) to ``rows.json``, with any digest.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.rows import digest_of_op, digests, digests_of, load, save, sources

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:] == ["--check"]:
            given, kept, different = sources(Path(folder)), load()["rows"], 0
            for each in kept:
                found = digests_of(each["pipeline"], given)
                if wrong := [name for name in found if found[name] != each[name]]:
                    different += 1
                    sys.stdout.write(f"{' and '.join(wrong)} differ: {each['pipeline']}\n")
            for each in (ops := load()["ops"]):
                if digest_of_op(each["pipeline"]) != each["digest"]:
                    different += 1
                    sys.stdout.write(f"scenes differ: {each['pipeline']}\n")
            kept += ops
            sys.stdout.write(f"{len(kept) - different} of {len(kept)} pipelines have the same rows\n")
            sys.exit(different > 0)
        save(digests(load(), Path(folder)))
