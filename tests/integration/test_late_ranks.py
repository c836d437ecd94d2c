"""Clients that were made before their process group, as in a script that Lightning starts once more for each rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import late_ranks, own_daemons
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


def said_by(module: str, where: Path, store: Path) -> list[Any]:
    """What two ranks print, which run a module."""
    command = [sys.executable, "-m", f"tests.support.{module}", str(where), str(store)]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(2)]
    try:
        said = [json.loads(rank.communicate(timeout=PATIENCE_S)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return said


def test_a_group_that_begins_later_gets_each_sample_once(server: Server, tmp_path: Path) -> None:
    said = said_by("late_ranks", server.runtime_dir, tmp_path / "store")
    everything = list(range(late_ranks.SAMPLES))
    for parts in zip(*(each["read"][:5] for each in said), strict=True):
        assert sorted(index for part in parts for index in part) == everything
    for each in said:
        assert sorted(each["read"][5]) == everything
        assert each["sizes"] == [6, 6, 6, 6, 6, 11]
        assert each["epochs"] == [1] * 6


def test_ranks_with_a_daemon_each_do_not_wait_for_each_other(short_path: Path) -> None:
    """Each is a shard: it makes its own rows only."""
    said = said_by("own_daemons", short_path / "none", short_path / "store")
    for parts in zip(*(each["read"] for each in said), strict=True):
        assert sorted(index for part in parts for index in part) == list(range(own_daemons.SAMPLES))
    assert [each["sizes"] for each in said] == [[67, 2001]] * 2
