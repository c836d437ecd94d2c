"""Who may have what: rules over uids and numbers."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.config import Settings
from prepserver.daemon.access import Access, Denied, Reading
from prepserver.memory.errors import MemoryShort
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import Concat, ImageFolder, Packed, Plugin, Subset, SyntheticImages, Take
from prepserver.schedule.events import Limits

OWN, OTHER = 990, 1000
FOLDER, DRAWN = ImageFolder("/data"), SyntheticImages(3)


@pytest.mark.parametrize("uid", [0, OWN])
@pytest.mark.parametrize("source", [FOLDER, Packed("/p"), Take(FOLDER, 1), Concat([DRAWN, FOLDER])])
def test_the_daemons_user_and_root_read_everywhere(uid: int, source: SourceSpec) -> None:
    assert Access(OWN).reading(uid, source) == Reading((), roots_only=False)
    assert Access(OWN, Settings(source_roots=("/data",))).reading(uid, source) == Reading(("/data",), roots_only=False)


def test_others_read_below_the_roots_only() -> None:
    assert Access(OWN, Settings(source_roots=("/data", "/more"))).reading(OTHER, FOLDER) == Reading(
        ("/data", "/more"), roots_only=True
    )


def test_without_roots_others_read_nothing_and_are_told_the_knob() -> None:
    with pytest.raises(Denied, match=r"uid 990 .* uid 1000.*roots = .*\[sources\].*--root"):
        Access(OWN).reading(OTHER, FOLDER)
    for hidden in (Concat([DRAWN, FOLDER]), Subset(DRAWN, file="/somewhere.npy")):
        with pytest.raises(Denied, match="no source roots"):
            Access(OWN).reading(OTHER, hidden)


def test_no_composition_makes_a_plugin_for_others() -> None:
    hidden = Take(Concat([DRAWN, Plugin("mine")]), 1)
    with pytest.raises(Denied, match="makes no Dataset of a plug-in for uid 1000"):
        Access(OWN, Settings(source_roots=("/",))).reading(OTHER, hidden)
    assert Access(OWN).reading(OWN, hidden) == Reading()


def test_what_is_made_and_not_read_is_for_everybody() -> None:
    assert Access(OWN).reading(OTHER, DRAWN) == Reading()
    assert Access(OWN).reading(OTHER, Take(DRAWN, 1)) == Reading()
    with pytest.raises(Denied):  # the files of its pipeline's ops are
        Access(OWN).reading(OTHER, DRAWN, ["/a.json"])
    assert Access(OWN, Settings(source_roots=("/data",))).reading(OTHER, DRAWN, ["/a.json"]) == Reading(("/data",))


def test_a_daemon_of_root_reads_for_others_below_the_roots_only() -> None:
    with pytest.raises(Denied):
        Access(0).reading(OTHER, Packed("/p"))


@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_only_the_daemons_user_and_root_may_stop_it(own: int, uid: int) -> None:
    assert Access(own).is_trusted(uid) == (uid in (0, own))


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_a_ring_is_refused_exactly_above_the_memory_limit(limit: int, held: int, asked: int) -> None:
    access = Access(OWN, Settings(memory_per_uid_bytes=limit))
    if limit and held + asked > limit:
        with pytest.raises(MemoryShort, match=r"memory_per_uid = .*\[limits\]") as caught:
            access.check_ring(OTHER, held, asked)
        assert (caught.value.asked_bytes, caught.value.free_bytes) == (asked, limit - held)
    else:
        assert access.check_ring(OTHER, held, asked) is None


def test_other_limits_come_from_the_settings() -> None:
    assert Access(OWN, Settings(jobs_per_uid=6, streams_per_uid=7)).limits == Limits(6, 7)
    assert Access(OWN).check_ring(OTHER, 0, 1 << 50) is None
