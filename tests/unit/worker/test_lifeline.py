from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}

TIED = """
import os, signal
from prepserver.worker.lifeline import die_with
parent = os.getpid()
if os.fork() == 0:
    die_with(parent)
    print(os.getpid(), flush=True)
signal.pause()
"""

ORPHAN = """
import os
from prepserver.worker.lifeline import die_with
try:
    die_with(os.getpid())
except ProcessLookupError as e:
    print(e)
"""


def test_a_tied_process_goes_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", TIED], env=ENV, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(PATIENCE_S * 1000)
    os.close(pidfd)


def test_a_process_whose_parent_changed_is_an_orphan() -> None:
    told = subprocess.run([sys.executable, "-c", ORPHAN], env=ENV, capture_output=True, check=True, text=True)
    assert told.stdout.endswith("is gone\n")
