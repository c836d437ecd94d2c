"""``python -m tests.golden`` computes all digests again; with ``--check`` it compares them and shows what differs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.rows import digests, digests_of, load, save, sources

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:] == ["--check"]:
            given, kept, different = sources(Path(folder)), load()["rows"], 0
            for each in kept:
                found = digests_of(each["pipeline"], given)
                if wrong := [name for name in found if found[name] != each[name]]:
                    different += 1
                    sys.stdout.write(f"{' and '.join(wrong)} differ: {each['pipeline']}\n")
            sys.stdout.write(f"{len(kept) - different} of {len(kept)} pipelines have the same rows\n")
            sys.exit(different > 0)
        save(digests(load(), Path(folder)))
