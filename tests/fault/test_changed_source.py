"""A dataset that changes while a job is in the middle of an epoch: its positions mean other samples from then on."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import ImageFolder, PrepClient, SourceChanged
from tests.support.clients import OPS, read
from tests.support.server import Server
from tests.support.tiny_images import jpeg, photo_tree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault

SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 6, "fields": "dict"}


@pytest.fixture
def tree(tmp_path: Path) -> ImageFolder:
    return photo_tree(tmp_path / "photos", 40)


def more(tree: ImageFolder) -> None:
    (Path(tree.root) / "cats" / "one_more.jpg").write_bytes(jpeg(99))


def fewer(tree: ImageFolder) -> None:
    """So few samples that the epoch ends before the job's place."""
    for photo in sorted(Path(tree.root).glob("*/*.jpg"))[3:-3]:
        photo.unlink()


def other(tree: ImageFolder) -> None:
    """As many samples as before."""
    cats = Path(tree.root) / "cats"
    (cats / "0000.jpg").rename(cats / "9999.jpg")


@pytest.mark.parametrize(("change", "samples"), [(more, 41), (other, 40)])
def test_a_job_that_comes_back_to_other_samples_stops(
    change: Callable[[ImageFolder], None], samples: int, server: Server, tree: ImageFolder,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with PrepClient(tree, OPS, runtime_dir=server.runtime_dir, **SPEC) as client:
        read(client)
        # A batch of the next epoch, so that there is one to read on with.
        wait_until(lambda: server.stream()["ready_upto"] >= 46, why=server.stream)
        server.kill()
        change(tree)
        server.start()
        state: dict[str, Any] = {}

        def read_on() -> None:
            while True:  # what the ring held of the epochs to come is still to be had
                for _ in client:
                    state.update(client.state_dict())

        with pytest.raises(SourceChanged) as caught:
            read_on()
        next_epoch = state["epoch"] + 1
        for word in (tree.root, "40 samples", f"now {samples}", f"set_epoch({next_epoch})"):
            assert word in str(caught.value)
        assert client.state_dict() == state
        client.set_epoch(next_epoch)
        with caplog.at_level(logging.WARNING, "prepclient"):
            assert sorted(index for index, _ in read(client)) == list(range(samples))
        assert "has changed" in caplog.text
    del caught
    gc.collect()  # frames of the traceback hold views of the ring


@pytest.mark.parametrize("inline", [True, False])
def test_a_state_of_other_samples_is_refused(inline: bool, server: Server, tree: ImageFolder, tmp_path: Path) -> None:
    where: dict[str, Any] = {"inline": True} if inline else {"runtime_dir": server.runtime_dir}
    with PrepClient(tree, OPS, **SPEC, **where) as client:
        next(iter(client))
        state = client.state_dict()
    moved = photo_tree(tmp_path / "elsewhere", 40)
    with PrepClient(moved, OPS, **SPEC, **where) as client:
        client.load_state_dict(state)
        assert len(read(client)) == 34
        more(moved)
        client.load_state_dict(state)
        with pytest.raises(SourceChanged, match="40 samples"):
            next(iter(client))
        later = {**state, "position": state["epoch_start"] + 12}
        del state["source"]  # as older releases saved it
        client.load_state_dict(state)
        assert len(read(client)) == 35
        fewer(moved)
        client.load_state_dict(later)
        with pytest.raises(SourceChanged, match=r"40 samples.*set_epoch\(0\) to begin epoch 0 again"):
            next(iter(client))


@pytest.mark.parametrize("change", [more, other])
def test_a_state_of_other_samples_says_how_to_restart_its_epoch(
    change: Callable[[ImageFolder], None], tree: ImageFolder
) -> None:
    with PrepClient(tree, OPS, inline=True, **SPEC) as client:
        read(client)
        next(iter(client))
        state = client.state_dict()
        change(tree)
        client.load_state_dict(state)
        with pytest.raises(
            SourceChanged, match=r"leave out load_state_dict and call set_epoch\(1\) to begin epoch 1 again"
        ):
            next(iter(client))
    with PrepClient(tree, OPS, inline=True, **SPEC) as fresh:
        fresh.set_epoch(state["epoch"])
        assert len(read(fresh)) == fresh.samples
