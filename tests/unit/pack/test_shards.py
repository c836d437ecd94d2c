from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepserver.pack import PackError
from prepserver.pack.shards import UNFINISHED, ShardWriter
from prepserver.protocol.packed import kept_record, skipped_record

RECORDS = [
    skipped_record(k, "gone") if k == 5 else kept_record(k, bytes([k]) * 7 * k) + kept_record(k, bytes([9 * k]) * 20)
    for k in range(12)
]
SHARD_BYTES = 500


def writer(folder: Path) -> ShardWriter:
    return ShardWriter(folder, SHARD_BYTES, columns=2)


def write(folder: Path, records: list[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    shards = writer(folder)
    for record in records:
        shards.append(record)
    shards.close()


def finish(folder: Path) -> dict[str, bytes]:
    """Goes on from wherever it is to the end; the files."""
    shards = writer(folder)
    for record in RECORDS[shards.table.done :]:
        shards.append(record)
    shards.finish()
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return finish(tmp_path_factory.mktemp("whole"))


def test_shards_keep_to_their_size_and_hold_records_in_order(uninterrupted: dict[str, bytes]) -> None:
    assert len(uninterrupted) == 4
    assert all(len(data) <= SHARD_BYTES for data in uninterrupted.values())
    assert b"".join(data for _, data in sorted(uninterrupted.items())) == b"".join(RECORDS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(0, len(RECORDS)), lost=st.integers(0, 200), junk=st.binary(max_size=100))
def test_after_any_kill_the_next_run_makes_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, uninterrupted: dict[str, bytes], count: int, lost: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    write(folder, RECORDS[:count])
    unfinished = folder / UNFINISHED
    data = unfinished.read_bytes()
    unfinished.write_bytes(data[: max(0, len(data) - lost)] + junk)
    assert finish(folder) == uninterrupted


def test_nothing_whole_is_lost(tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:4])
    with (tmp_path / UNFINISHED).open("ab") as file:
        file.write(RECORDS[4][:-1])
    assert writer(tmp_path).table.done == 4


def test_skipped_samples_are_not_served_but_count_as_done(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    table = writer(tmp_path).table
    assert table.done == 12
    assert list(table.samples) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_a_finished_shard_that_is_damaged_is_named(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    path = tmp_path / "shard-00001.packed"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PackError, match=r"shard-00001.packed of an earlier run is damaged"):
        writer(tmp_path)


def test_a_shard_that_is_missing_in_the_middle_is_named(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    (tmp_path / "shard-00000.packed").unlink()
    with pytest.raises(PackError, match="lacks shard-00000"):
        writer(tmp_path)
