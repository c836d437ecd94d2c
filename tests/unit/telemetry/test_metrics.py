"""The daemon's figures as metrics: also what an older daemon says, and what a machine with a GPU has."""

from __future__ import annotations

import re

import pytest

from tests.unit.cli.test_status import state
from tests.unit.cli.test_top import busy

metrics = pytest.importorskip("prepserver.telemetry.metrics").metrics


def test_an_older_daemon_has_fewer_metrics() -> None:
    """The states that these tests share lack what was added later."""
    found = {each.name: each.samples for each in metrics(state())}
    assert found["prepserver_job_verdict"] == found["prepserver_stream_stage_seconds"] == []
    assert found["prepserver_up"][0].value == 1


def test_names_are_in_base_units_and_series_are_there_once() -> None:
    seen = set()
    for family in metrics(busy(3)):
        assert re.fullmatch("prepserver_[a-z_]+", family.name)
        assert not re.search("_(ms|percent|s|ns|gib|fraction)$", family.name)
        assert family.documentation
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in seen
            seen.add(key)
    assert ("prepserver_gpu_power_watts", (("gpu", "0"),)) in seen
    assert ("prepserver_gpu_power_watts", (("gpu", "1"),)) not in seen


def test_without_a_daemon_there_is_only_that() -> None:
    (up,) = metrics(None)
    assert (up.name, up.samples[0].value) == ("prepserver_up", 0)
