"""Clients that were made before their process group, as in a script that Lightning starts once more for each rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import late_ranks, own_daemons
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


def test_a_group_that_begins_later_gets_each_sample_once(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.late_ranks", str(server.runtime_dir), str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(2)]
    try:
        said = [json.loads(rank.communicate(timeout=PATIENCE_S)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    everything = list(range(late_ranks.SAMPLES))
    for parts in zip(*(each["read"][:5] for each in said), strict=True):
        assert sorted(index for part in parts for index in part) == everything
    for each in said:
        assert sorted(each["read"][5]) == everything
        assert each["sizes"] == [6, 6, 6, 6, 6, 11]
        assert each["epochs"] == [1] * 6


def test_ranks_with_a_daemon_each_do_not_wait_for_each_other(short_path: Path) -> None:
    """Each is a shard: it makes its own rows only."""
    command = [sys.executable, "-m", "tests.support.own_daemons", str(short_path / "none"), str(short_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(own_daemons.RANKS)]
    try:
        said = [json.loads(rank.communicate(timeout=PATIENCE_S)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    for parts in zip(*(each["read"] for each in said), strict=True):
        assert sorted(index for part in parts for index in part) == list(range(own_daemons.SAMPLES))
    assert [each["sizes"] for each in said] == [[67, 2001]] * 2
