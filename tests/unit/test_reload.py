"""What a running daemon takes over from settings, and what waits for a restart."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.config import FIELDS, LIVE, Settings, reload

CHANGED = Settings(
    workers=3, memory_bytes=1 << 30, runtime_dir="/r", cache_dir="/c", log_level="debug", chunk_rows=8,
    sample_timeout_s=5, drain_s=1, nice=0, source_roots=("/d",), memory_per_uid_bytes=1, jobs_per_uid=1,
    streams_per_uid=1, socket_group="g", socket_mode=0o666,
)  # fmt: skip
NAMES = {name: field.name for name, field in FIELDS.items()}


def test_live_names_settings() -> None:
    assert set(LIVE) < NAMES.keys()


@given(st.sets(st.sampled_from(sorted(NAMES))))
def test_every_change_is_taken_over_or_named(names: set[str]) -> None:
    names = {name for name in names if getattr(CHANGED, NAMES[name]) != getattr(Settings(), NAMES[name])}
    changed = {NAMES[name]: getattr(CHANGED, NAMES[name]) for name in names}
    reloaded = reload(Settings(), dataclasses.replace(Settings(), **changed))
    assert set(reloaded.now) | set(reloaded.at_restart) == names
    assert set(reloaded.now) == names & set(LIVE)
    for name, field in NAMES.items():
        holds = CHANGED if name in reloaded.now else Settings()
        assert getattr(reloaded.settings, field) == getattr(holds, field)


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
    assert (reloaded.now, reloaded.at_restart) == (("sources.roots",), ("sources.roots (its URLs)",))
    reloaded = reload(old, Settings(source_roots=("/a",)))
    assert (reloaded.settings, reloaded.now) == (old, ())
