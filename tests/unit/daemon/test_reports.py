"""What workers report is passed on, whatever they say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prepserver.daemon import reports
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


def test_the_log_names_some_of_many_bad_samples(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was touched is bad as a whole, in every pass; others' bad samples are named all the same."""
    monkeypatch.setattr(reports, "_SOURCES_MOST", 2)
    coordinator = SimpleNamespace(source_of=lambda task: "abc"[task], workers=SimpleNamespace(tasks={}))
    named = SimpleNamespace(name=lambda source, index, reason: None)
    driver: Any = SimpleNamespace(coordinator=coordinator, happened=lambda event: None)
    told = Reports(driver, cast(Quarantine, named), cast(Watch, None), Path("/cache"))

    def logged(task: int, count: int) -> list[str]:
        caplog.clear()
        told.task_done(5, work.Filled(task, [(p, p, f"{p}.jpg: cut off", []) for p in range(count)], 0, 0))
        return [record.getMessage() for record in caplog.records]

    assert logged(0, 1100) == [
        *(f"bad sample {p}: {p}.jpg: cut off" for p in range(20)),
        "of more rows with bad samples of this dataset, only the 100th, the 1000th and so on are named",
        "bad sample 99, in the 100th such row of its dataset: 99.jpg: cut off",
        "bad sample 999, in the 1000th such row of its dataset: 999.jpg: cut off",
    ]
    assert logged(0, 1100) == []
    assert logged(1, 3) == [f"bad sample {p}: {p}.jpg: cut off" for p in range(3)]
    assert logged(0, 20) == []
    assert len(logged(2, 1)) == 1
    assert len(logged(0, 3)) == 3  # the oldest source was forgotten
