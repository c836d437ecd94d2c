"""What workers report is passed on, whatever they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from prepserver.daemon.driver import Driver
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.reports import Reports
from prepserver.daemon.watch import Watch
from prepserver.protocol import work
from prepserver.schedule.events import ChunkFailed


class Heard(list[Any]):
    """Instead of the driver: what has happened."""

    happened = list.append


@pytest.mark.parametrize("name", ["a.idx", "gone.idx", "folder.idx", "no\0name.idx", "a.jpg"])
def test_a_damaged_index_is_removed_and_no_other_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.idx").mkdir()
    for each in ("a.idx", "a.jpg"):
        (tmp_path / each).touch()
    heard = Heard()
    failed = work.Failed(1, "it is damaged", damaged=str(tmp_path / name))
    Reports(cast(Driver, heard), cast(Quarantine, None), cast(Watch, None), tmp_path).task_done(5, failed)
    assert heard == [ChunkFailed(5, 1, "it is damaged")]
    assert (tmp_path / "a.idx").exists() == (name != "a.idx")
    assert (tmp_path / "a.jpg").exists()
