"""Rows without images through a real daemon: the same as inline, in shards, resumed, replayed, and after a change."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import os
import re
import signal
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepclient import (
    Arrays,
    BadSampleError,
    Csv,
    Parquet,
    PrepClient,
    Resize,
    Sharding,
    SourceUnavailable,
    Tar,
    TFRecord,
)
from prepserver.pipeline import kinds
from prepserver.pipeline.source import SourceSpec
from tests.support.forked import cli
from tests.support.logged import await_logged
from tests.support.server import Server
from tests.support.tf_records import file_of

pytestmark = pytest.mark.integration

COUNT = 3000
SPEC: dict[str, Any] = {"batch_size": 256, "shuffle": True, "seed": 5, "fields": "dict"}
VALUES = np.random.default_rng(0).standard_normal((COUNT, 40), dtype=np.float32)


def arrays(folder: Path) -> SourceSpec:
    np.save(folder / "x.npy", VALUES)
    np.save(folder / "y.npy", np.arange(COUNT, dtype=np.uint16) % 10)
    return Arrays(x=folder / "x.npy", label=folder / "y.npy")


def records(folder: Path) -> SourceSpec:
    for shard in range(3):
        numbers = range(1000 * shard, 1000 * shard + 1000)
        data = file_of({"x": VALUES[n].tolist(), "label": [n % 10]} for n in numbers)
        if shard == 1 and importlib.util.find_spec("indexed_gzip") is not None:
            data = gzip.compress(data)
        (folder / f"t-{shard}.tfrecord").write_bytes(data)
    return TFRecord(folder / "*.tfrecord", {"x": kinds.Array((40,)), "label": kinds.Label()})


@pytest.fixture(scope="module", params=[arrays, records])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SourceSpec:
    made: SourceSpec = request.param(tmp_path_factory.mktemp("records"))
    return made


def indices(client: PrepClient, batches: int | None = None) -> list[int]:
    """Samples of the rows of an epoch, which are compared with what was written."""
    found: list[int] = []
    for number, batch in enumerate(client):
        index = batch["index"]
        assert (batch["x"].numpy() == VALUES[index]).all()
        assert (batch["label"] == index % 10).all()
        found += index.tolist()
        if number + 1 == batches:
            break
    return found


def test_rows_are_those_of_inline_and_an_epoch_has_each_once(server: Server, source: SourceSpec) -> None:
    with PrepClient(source, [], inline=True, **SPEC) as client:
        expected = [indices(client), indices(client)]
    assert sorted(expected[0]) == list(range(COUNT))
    with PrepClient(source, [], runtime_dir=server.runtime_dir, job="tables", **SPEC) as client:
        assert [indices(client), indices(client)] == expected
        state = client.state_dict()
        assert client.stats()["bad_samples"] == 0
    with PrepClient(source, [], runtime_dir=server.runtime_dir, **SPEC) as client:
        first = indices(client, 3)
        state = client.state_dict()
    with PrepClient(source, [], runtime_dir=server.runtime_dir, **SPEC) as client:
        client.load_state_dict(state)
        assert first + indices(client) == expected[0]


def test_shards_have_every_sample_once_between_them(server: Server, source: SourceSpec) -> None:
    found: list[int] = []
    for shard in range(2):
        sharding = Sharding(num_shards=2, shard_index=shard)
        with PrepClient(source, [], runtime_dir=server.runtime_dir, sharding=sharding, **SPEC) as client:
            found += indices(client)
    assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize("order", [{"shuffle": False}, {"order": "batch-shuffle-repeat"}])
def test_rows_of_row_groups_come_once_though_workers_die(server: Server, tmp_path: Path, order: dict[str, Any]) -> None:
    """Chunks wait for the worker that keeps their row group, and it may be dead."""
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    x = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(VALUES.reshape(-1)), 40)
    table = pyarrow.table({"x": x, "label": np.arange(COUNT) % 10})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=150)
    source = Parquet(tmp_path / "a.parquet", columns={"x": kinds.Array((40,)), "label": kinds.Label()})
    spec = SPEC | {"batch_size": 50} | order
    with PrepClient(source, [], inline=True, **spec) as client:
        expected = [indices(client) for _ in range(4)]
    found: list[list[int]] = []
    with PrepClient(source, [], runtime_dir=server.runtime_dir, **spec) as client:
        for epoch in range(4):
            begun = indices(client, 7)
            state = client.state_dict()
            for pid in server.workers()[: epoch % 2 + 1]:  # one, or all
                with contextlib.suppress(ProcessLookupError):  # the status may name one that has just ended
                    os.kill(pid, signal.SIGKILL)
            client.load_state_dict(state)
            found.append(begun + indices(client))
        assert client.stats()["bad_samples"] == 0
    assert found == expected


def test_replay_makes_a_row_of_numbers_again(server: Server, tmp_path: Path) -> None:
    source = arrays(tmp_path)
    with PrepClient(source, [], runtime_dir=server.runtime_dir, job="numbers", **SPEC) as client:
        order = indices(client)
    await_logged(server)
    out = tmp_path / "row.npy"
    place = ["--job", "numbers", "--batch", "2", "--row", "3", "--runtime-dir", str(server.runtime_dir)]
    done = cli("replay", *place, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert (np.load(out) == VALUES[order[2 * 256 + 3]]).all()
    wrong = cli("replay", *place, "-o", str(tmp_path / "row.png"))
    assert (wrong.returncode, "x is not a picture; write it to a .npy file" in wrong.stderr) == (2, True)
    assert cli("audit", "numbers", "--runtime-dir", str(server.runtime_dir)).returncode == 0


def test_a_file_that_changes_under_a_job_is_named(server: Server, tmp_path: Path) -> None:
    source = arrays(tmp_path)
    with PrepClient(source, [], runtime_dir=server.runtime_dir, on_error="mask", **SPEC) as client:
        for number, batch in enumerate(batch for _ in range(9) for batch in client):
            if number == 3:
                os.truncate(tmp_path / "x.npy", 4000)
            if not batch["valid"].all():
                break
        assert number >= 3
    assert "x.npy has 4000 bytes and should have" in server.log()


def test_whatever_is_wrong_with_a_file_others_go_on(server: Server, tmp_path: Path) -> None:
    """Each error names file, record and reason, while another job of the same daemon reads its epoch."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("a.jpg", "a.cls"):
            member = tarfile.TarInfo(name)
            member.size = 700
            tar.addfile(member, io.BytesIO(b"1" * 700))
    parquet.write_table(pyarrow.table({"y": [1, 2]}), tmp_path / "a.parquet")
    good = file_of({"x": [float(n)]} for n in range(3))
    wrong_length, wrong_data = bytearray(good), bytearray(good)
    wrong_length[len(good) // 3] ^= 1
    wrong_data[len(good) // 3 + 20] ^= 1
    files: dict[str, bytes | bytearray] = {
        "a.tar": archive.getvalue()[:1000], "length.tfrecord": wrong_length, "data.tfrecord": wrong_data,
        "short.csv": b"x,y\n1,2\n3\n", "text.csv": b"x\n1\n\xe4\n",
    }  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    x = {"x": kinds.Array((1,))}
    numbers = {"x": kinds.Scalar(), "y": kinds.Scalar()}
    faults: list[tuple[SourceSpec, type[Exception], str]] = [
        (Tar(tmp_path / "a.tar"), SourceUnavailable, r"a\.tar is cut off: a file at byte 0 of 1000 has 700 bytes"),
        (Parquet(tmp_path / "a.parquet", columns=x), SourceUnavailable, r"a\.parquet has no column 'x'"),
        (TFRecord(tmp_path / "length.tfrecord", x), SourceUnavailable, r"length\.tfrecord is damaged: the checksum"),
        (TFRecord(tmp_path / "data.tfrecord", x), BadSampleError, r"data\.tfrecord, record 1: its checksum is wrong"),
        (Csv(tmp_path / "short.csv", numbers), BadSampleError, r"short\.csv, line 3: the line has 1 cells"),
        (Csv(tmp_path / "text.csv", {"x": kinds.Scalar()}), BadSampleError, r"text\.csv, line 3: .*0xe4, is not UTF-8"),
    ]
    (other := tmp_path / "other").mkdir()
    with PrepClient(arrays(other), [], runtime_dir=server.runtime_dir, **SPEC) as going:
        batches = iter(going)
        found = [next(batches)["index"]]
        for spec, error, said in faults:
            ops = [Resize((8, 8))] if "image" in spec.columns else []
            with PrepClient(spec, ops, batch_size=1, runtime_dir=server.runtime_dir) as client:
                with pytest.raises(error) as caught:
                    list(client)
                assert re.search(said, str(caught.value))
            found.append(next(batches)["index"])
        found += [batch["index"] for batch in batches]
    assert sorted(np.concatenate(found).tolist()) == list(range(COUNT))
