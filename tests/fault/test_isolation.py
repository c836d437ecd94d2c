"""A pipeline that harms workers harms its own job: the others get their rows, and their samples stay good."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import InvalidSpec, Joining, PrepClient
from prepserver.pipeline.ops import CenterCrop, ColorJitter, Op, Resize
from prepserver.pipeline.sources import SourceSpec
from tests.support.clients import OPS, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.server import Server
from tests.support.tiny_images import photo_tree

pytestmark = pytest.mark.fault

NewServer = Callable[..., Server]

LARGE: tuple[Op, ...] = (Resize((5000, 5000)), ColorJitter(0.4), CenterCrop(8))
"""Wants 150 MiB for a row of 192 bytes."""

SLOW: tuple[Op, ...] = (Resize((1500, 1500)), *itertools.repeat(ColorJitter(0.4, 0.4, 0.4, 0.1), 60), CenterCrop(8))
"""Wants 20 s for a row."""


def job(server: Server, source: SourceSpec, ops: tuple[Op, ...], **arguments: Any) -> PrepClient:
    arguments = {"batch_size": 4, "fields": "dict", "timeout_s": 600.0, **arguments}
    return PrepClient(source, list(ops), runtime_dir=server.runtime_dir, **arguments)


def leave_room(pid: int, nbytes: int) -> None:
    """A process may use this much more address space than it has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + nbytes
    resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


def test_a_pipeline_that_cannot_run_ends_its_own_job_only(new_server: NewServer, tmp_path: Path) -> None:
    """The job is told the pipeline's error."""
    source = photo_tree(tmp_path, 200)
    server = new_server(workers=2)
    for pid in server.workers():
        leave_room(pid, 100 << 20)
    with job(server, source, OPS, job="good") as good:
        batches = iter(good)
        rows = rows_of(next(batches))
        with (
            job(server, source, LARGE, job="large", joining=Joining(wait_s=600.0)) as large,
            pytest.raises(InvalidSpec, match=r"this pipeline: at .*\.jpg: .*(Memory|memory).*in (Resize|ColorJitter)"),
        ):
            next(iter(large))
        rows += [row for batch in batches for row in rows_of(batch)]
        assert rows == inline_rows(source, batch_size=4)
        assert [each["name"] for each in server.status()["jobs"]] == ["good"]


def test_a_slow_pipeline_has_no_sample_quarantined_for_others(new_server: NewServer, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 2)
    server = new_server(workers=2, settings={"sample_timeout_s": 4.0})
    with job(server, source, SLOW, job="slow", batch_size=2, on_error="mask") as slow:
        (batch,) = list(slow)
        assert not batch["valid"].any()
    status = server.status()
    assert status["quarantined"] == {}
    (found,) = status["quarantined_for_pipelines"]
    assert found["samples"] == [0, 1]
    with job(server, source, OPS, batch_size=2) as other:  # on_error="raise"
        assert read(other) == inline_rows(source, batch_size=2)
    listed = cli("quarantine", "--json", "--runtime-dir", str(server.runtime_dir), COLUMNS="300")
    assert f'"pipeline": "{found["pipeline"]}"' in listed.stdout
    assert '"ops": "Decode, Resize, ColorJitter, ' in listed.stdout
    server.stop()
    server.start()
    with job(server, source, OPS, batch_size=2) as other:
        assert read(other) == inline_rows(source, batch_size=2)
    assert server.status()["quarantined_for_pipelines"] == [found]
