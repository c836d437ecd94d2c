"""A pipeline that harms workers harms its own job: the others get their rows, and their samples stay good."""

from __future__ import annotations

import itertools
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import InvalidSpec, Joining, PrepClient, kinds
from prepserver.pipeline.ops import CenterCrop, ColorJitter, Op, PadTokens, Resize, Tokenize
from prepserver.pipeline.source import MAX_WIRE_BYTES
from prepserver.pipeline.sources import Csv, SourceSpec
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


TEXTS = {"a": kinds.Text(), "b": kinds.Text()}


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


def folder(path: Path, nbytes: int) -> Path:
    """Makes a folder whose path has this many bytes."""
    while (left := nbytes - len(str(path)) - 1) > 0:
        path /= "x" * (left if left < 200 else 100)
    path.mkdir(parents=True)
    return path


def test_a_source_too_large_for_messages_is_refused(new_server: NewServer, tmp_path: Path) -> None:
    """With the folders that workers may open it is too large for a message to them, although its question is not."""
    tokenizers = [folder(tmp_path / name, 4070) / "t" for name in TEXTS]
    folders = [folder(tmp_path / str(number), 742) for number in range(11)]
    files = [folders[number % 11] / f"{number:02}.csv" for number in range(64)]
    left = 2 * MAX_WIRE_BYTES - len(json.dumps(Csv(files, columns=TEXTS).to_wire(), separators=(",", ":")))
    for number, file in enumerate(files):
        files[number] = file.with_name("x" * min(left, 100) + file.name)
        left -= min(left, 100)
    for each in (*files, *tokenizers):
        each.write_text("a,b\nc,d\n")
    ops: list[Op] = []
    for name, tokenizer in zip(TEXTS, tokenizers, strict=True):
        ops += [Tokenize(tokenizer, column=name, into=f"of_{name}"), PadTokens(8, mask=None, column=f"of_{name}")]
    server, honest = new_server(), photo_tree(tmp_path / "set", 32)
    with job(server, honest, OPS) as client:
        batches = iter(client)
        rows = rows_of(next(batches))
        workers = server.workers()
        large = job(server, Csv(files, columns=TEXTS), tuple(ops), job="large")
        with large, pytest.raises(InvalidSpec, match="use fewer or shorter paths"):
            next(iter(large))
        rows += [row for batch in batches for row in rows_of(batch)]
        assert rows == inline_rows(honest, batch_size=4)
        assert server.workers() == workers
