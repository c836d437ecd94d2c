"""A training process near its own limit of descriptors: a clear error or rows, at every limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.fault

CHILD = """
import gc, json, os, resource, sys
from prepclient import PrepClient, PrepClientError, RandomResizedCrop, SyntheticImages, TooFewDescriptors

def held():
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in map(str, range(256)) if os.path.islink(f"/proc/self/fd/{fd}")]

gc.disable()
arguments = json.loads(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before = held()
for limit in range(3, 200):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    client = PrepClient(SyntheticImages(40, 16), [RandomResizedCrop(8)], batch_size=4, **arguments)
    try:
        count = len(list(client))
        assert count == 10, count
        client.close()
        print("worked", limit, flush=True)
        break
    except TooFewDescriptors as e:
        text = str(e)
        assert f"(RLIMIT_NOFILE, `ulimit -n`) is {limit} and may be raised to {hard}." in text, text
    finally:
        client.close()
    assert held() == before, (before, held())
    children = open(f"/proc/self/task/{os.getpid()}/children") if limit > 40 else None
    assert children is None or children.read() == ""
else:
    sys.exit("never worked")
"""


@pytest.mark.parametrize("way", ["a daemon", "a private daemon", "this process"])
def test_too_few_descriptors_are_a_clear_error(way: str, server: Server, short_path: Path) -> None:
    arguments = {
        "a daemon": {"runtime_dir": str(server.runtime_dir)},
        "a private daemon": {"runtime_dir": str(short_path / "none"), "workers": 1},
        "this process": {"inline": True},
    }[way]
    tmp = short_path / "tmp"
    tmp.mkdir()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(arguments)], env=environment(XDG_RUNTIME_DIR=str(tmp)),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = [line for line in child.stderr.splitlines() if not line.startswith("waiting up to")]  # a slow machine
    assert (child.returncode, said) == (0, [])
    assert child.stdout.startswith("worked")
    assert list(tmp.iterdir()) == []
