"""What a running daemon takes over from settings, and what waits for a restart."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.config import Settings
from prepserver.daemon.reload import LIVE, reload

CHANGED = Settings(
    workers=3, memory_bytes=1 << 30, runtime_dir="/r", cache_dir="/c", log_level="debug", chunk_rows=8,
    sample_timeout_s=5, drain_s=1, nice=0, source_roots=("/d",), memory_per_uid_bytes=1, jobs_per_uid=1,
    streams_per_uid=1, socket_group="g", socket_mode=0o666,
)  # fmt: skip
NAMES = [field.name for field in dataclasses.fields(Settings)]


def test_live_names_settings() -> None:
    assert set(LIVE) < set(NAMES)


@given(st.sets(st.sampled_from(NAMES)))
def test_every_change_is_taken_over_or_named(names: set[str]) -> None:
    names = {name for name in names if getattr(CHANGED, name) != getattr(Settings(), name)}
    reloaded = reload(Settings(), dataclasses.replace(Settings(), **{name: getattr(CHANGED, name) for name in names}))
    assert set(reloaded.now) | set(reloaded.at_restart) == names
    assert set(reloaded.now) == names & set(LIVE)
    for name in NAMES:
        holds = CHANGED if name in reloaded.now else Settings()
        assert getattr(reloaded.settings, name) == getattr(holds, name)


@pytest.mark.parametrize("settings", [Settings(), CHANGED])
def test_reading_the_same_again_changes_nothing(settings: Settings) -> None:
    reloaded = reload(settings, settings)
    assert reloaded.settings == settings
    assert reloaded.now == reloaded.at_restart == ()


def test_other_urls_wait_for_a_restart_and_folders_do_not() -> None:
    """Workers know which URLs they may read since their zygote was started."""
    old = Settings(source_roots=("/a", "s3://old"))
    reloaded = reload(old, Settings(source_roots=("/b", "s3://new")))
    assert reloaded.settings.source_roots == ("/b", "s3://old")
    assert (reloaded.now, reloaded.at_restart) == (("source_roots",), ("source_roots (its URLs)",))
    reloaded = reload(old, Settings(source_roots=("/a",)))
    assert (reloaded.settings, reloaded.now) == (old, ())
