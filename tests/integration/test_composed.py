"""Composed sources with a real daemon: shared, resumed, audited, replayed and named like plain ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from prepclient import (
    BadSampleError,
    Concat,
    Filter,
    Mix,
    Parquet,
    PrepClient,
    Repeat,
    Split,
    Subset,
    SyntheticImages,
    Take,
    Windows,
    kinds,
)
from prepserver.cli import exits
from prepserver.pipeline.sources import SourceSpec
from tests.support.clients import OPS, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.logged import await_logged
from tests.support.server import Server
from tests.support.tiny_images import jpeg, photo_tree

pytestmark = pytest.mark.integration

PATTERN = (0, 0, 1, 0)
SPEC: dict[str, Any] = {"fields": "dict", "batch_size": 8, "seed": 5}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> SourceSpec:
    """Three places in proportions of 3 to 1, 60 samples and 20."""
    home = tmp_path_factory.mktemp("mixed")
    photos, more = photo_tree(home / "photos", 44), photo_tree(home / "more", 20)
    np.save(home / "chosen.npy", np.arange(19, 3, -1))
    photographed = Concat([photos, Subset(more, file=home / "chosen.npy")])
    return Mix([photographed, Repeat(SyntheticImages(10, 40, num_classes=2), 2)], [0.75, 0.25])


@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_a_mix_is_read_and_resumed_like_a_plain_source(server: Server, mixed: SourceSpec, shuffle: Any) -> None:
    arguments = {**SPEC, "shuffle": shuffle}
    expected = inline_rows(mixed, epochs=2, **{k: v for k, v in arguments.items() if k != "fields"})
    assert sorted(index for index, _ in expected[:80]) == list(range(80))
    if shuffle:
        assert expected[:80] != expected[80:]
    kinds = [PATTERN[index % 4] for index, _ in expected]
    assert kinds == list(PATTERN) * 40  # so any 4 rows one after the other are 3 photos and a drawn one
    with PrepClient(mixed, OPS, runtime_dir=server.runtime_dir, job=f"mix-{shuffle}", **arguments) as client:
        assert (client.samples, client.num_classes) == (80, 2)
        iterator = iter(client)
        begun = [row for _ in range(4) for row in rows_of(next(iterator))]
        state = client.state_dict()
    with PrepClient(mixed, OPS, runtime_dir=server.runtime_dir, job=f"mix-{shuffle}", **arguments) as client:
        client.load_state_dict(state)
        assert begun + read(client) + read(client) == expected
    await_logged(server)
    done = cli("audit", f"mix-{shuffle}", "--json", "--runtime-dir", str(server.runtime_dir))
    verdict = json.loads(done.stdout)
    assert verdict["exactly_once"]
    assert [epoch["once"] for training in verdict["trainings"] for epoch in training["epochs"]] == [80, 80]


def test_a_row_of_a_mix_is_made_again_and_named(server: Server, mixed: SourceSpec, tmp_path: Path) -> None:
    with PrepClient(mixed, OPS, runtime_dir=server.runtime_dir, job="again", shuffle=True, **SPEC) as client:
        index = read(client, 1)[2][0]
    await_logged(server)
    place = ("--job", "again", "--batch", "0", "--row", "2", "--runtime-dir", str(server.runtime_dir))
    done = cli("replay", *place, "-o", str(tmp_path / "row.png"))
    assert done.returncode == exits.OK, done.stderr
    where = " in SyntheticImages" if PATTERN[index % 4] else " in /"
    assert f"sample {index}\npath " in done.stdout
    assert where in done.stdout.splitlines()[1]


def test_a_bad_sample_is_named_by_its_own_source(server: Server, tmp_path: Path) -> None:
    good, bad = photo_tree(tmp_path / "good", 4), photo_tree(tmp_path / "bad", 6, frozenset({2}))
    source = Repeat(Concat([good, Take(bad, 5)]), 2)
    with (
        PrepClient(source, OPS, runtime_dir=server.runtime_dir, **SPEC) as client,
        pytest.raises(BadSampleError, match=rf"cats/0002\.jpg in {tmp_path}/bad: "),
    ):
        read(client)
    arguments: dict[str, Any] = {"on_error": "skip", "batch_size": 9}
    with PrepClient(source, OPS, fields="dict", runtime_dir=server.runtime_dir, **arguments) as client:
        assert read(client) == inline_rows(source, **arguments)
        assert client.stats()["bad_samples"] == 2


def test_jobs_of_one_source_share_its_listing(server: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 12)
    train, test = Split(source, 3, 1), Split(source, 3, 1, train=False)
    seen = []
    for each in (train, test, Filter(source, ["dogs"])):
        with PrepClient(each, OPS, runtime_dir=server.runtime_dir, **SPEC) as client:
            batches = list(client)
            seen.append(sum(len(batch["index"]) for batch in batches))
            assert client.dataset.classes == ["cats", "dogs"]
    assert seen == [8, 4, 6]
    assert {label for batch in batches for label in batch["label"].tolist()} == {1}
    cached = [path.name for path in (server.home / "cache").glob(f"{source.digest[:32]}-*.idx")]
    assert len(cached) == 1


def test_steps_of_episodes_are_read_and_resumed(server: Server, tmp_path: Path) -> None:
    """Frames with the actions around them; then the actions alone, which are copied many rows at once."""
    episode, actions = np.repeat(range(6), 8), np.arange(96, dtype="f4").reshape(48, 2)
    frames = {"image": [jpeg(k) for k in range(48)], "label": episode, "action": actions.tolist()}
    pq.write_table(pa.table(frames), tmp_path / "a.parquet", row_group_size=10)
    for images, ops in (({"image": kinds.Image()}, OPS), ({}, ())):
        columns = {**images, "label": kinds.Label(), "action": kinds.Array((2,))}
        chosen = Filter(Parquet(tmp_path / "a.parquet", columns=columns), [0, 2, 3, 5])
        source = Windows(chosen, {"action": range(-1, 4)}, "label", pad=True)
        arguments = {**SPEC, "shuffle": True}
        with PrepClient(source, ops, inline=True, **arguments) as client:
            expected = [batch for _ in range(2) for batch in client]
        with PrepClient(source, ops, runtime_dir=server.runtime_dir, **arguments) as client:
            found = [next(iter(client))]
            state = client.state_dict()
        with PrepClient(source, ops, runtime_dir=server.runtime_dir, **arguments) as client:
            client.load_state_dict(state)
            found += [batch for _ in range(2) for batch in client]
        for batch, same in zip(found, expected, strict=True):
            assert all(torch.equal(batch[name], each) for name, each in same.items())
            first = 8 * batch["label"].numpy()[:, None]
            rows = first + batch["index"].numpy()[:, None] % 8 + range(-1, 4)
            np.testing.assert_array_equal(batch["action"], actions[rows.clip(first, first + 7)])
            np.testing.assert_array_equal(batch["action_is_pad"], (rows < first) | (rows > first + 7))
