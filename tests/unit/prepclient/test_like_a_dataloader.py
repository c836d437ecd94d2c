"""A `PrepClient` where scripts and frameworks expect a DataLoader."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from prepclient import (
    FileList,
    ImageFolder,
    Packed,
    PrepClient,
    RandomResizedCrop,
    Sharding,
    SyntheticImages,
)
from prepclient.dataset import _folder_names
from prepclient.inline import InlineFeed
from prepclient.session import Handed, Session
from tests.support.server import cli, environment
from tests.support.tiny_images import photo_tree
from tests.support.waiting import PATIENCE_S

N = 13


def client(source: Any, **more: Any) -> PrepClient:
    return PrepClient(source, [RandomResizedCrop(8)], batch_size=4, inline=True, **more)


def test_it_has_what_a_dataloader_has(tmp_path: Path) -> None:
    root = photo_tree(tmp_path / "photos", N).root
    with client(ImageFolder(root), drop_last=True) as train:
        assert (train.batch_size, train.drop_last, train.num_workers, train.prefetch_factor) == (4, True, 0, None)
        assert len(train.dataset) == N
        assert train.dataset.classes == sorted(path.name for path in Path(root).iterdir())
        assert train.dataset.class_to_idx == {name: label for label, name in enumerate(train.dataset.classes)}
        train.sampler.set_epoch(3)
        assert train.epoch == 3
        with pytest.raises(TypeError, match="iterate over the PrepClient"):
            train.dataset[0]
        with pytest.raises(TypeError, match="fields='dict'"):
            iter(train.sampler)
        with client(ImageFolder(root)) as late:
            assert len(late) == 4
            (Path(root) / "one more").mkdir()
            assert len(train.dataset.classes) == len(late.dataset.classes) == 2  # those of the labels that it has


def test_its_samplers_have_lengths() -> None:
    with client(SyntheticImages(N, 16), sharding=Sharding(1, 2), job="j") as train:
        assert len(train.sampler) == 7  # as DistributedSampler's: the same for all ranks, rounded up
        assert len(train.batch_sampler) == len(train) == 2
        assert (train.batch_sampler.batch_size, train.batch_sampler.drop_last) == (4, False)
        with pytest.raises(TypeError, match="fields='dict'"):
            iter(train.batch_sampler.sampler)
        train.batch_sampler.set_epoch(2)
        assert train.epoch == 2


def listed(tmp_path: Path, labels: Sequence[str]) -> Path:
    """A list of photos with these labels in turns."""
    root = Path(photo_tree(tmp_path / "photos", N).root)
    lines = [f"{photo},{labels[k % len(labels)]}\n" for k, photo in enumerate(sorted(root.rglob("*.jpg")))]
    (tmp_path / "list.csv").write_text("".join(lines))
    return tmp_path / "list.csv"


@pytest.mark.parametrize("packs", [False, True])
def test_lists_with_labels_in_words_have_classes_packed_or_not(tmp_path: Path, packs: bool) -> None:
    source: Any = FileList(listed(tmp_path, ["zebra", "ant", "10"]))
    if packs:
        assert cli("pack", str(tmp_path / "list.csv"), str(tmp_path / "packed"), "--workers", "1").returncode == 0
        source = Packed(tmp_path / "packed")
    with client(source, fields="dict") as train:
        dataset = train.dataset
        assert dataset.classes == ["10", "ant", "zebra"]
        assert dataset.class_to_idx == {"10": 0, "ant": 1, "zebra": 2}
        seen = {
            k: label
            for batch in train
            for k, label in zip(*(batch[f].tolist() for f in ("index", "label")), strict=True)
        }
        assert [dataset.classes[seen[k]] for k in range(4)] == ["zebra", "ant", "10", "zebra"]


def test_names_that_are_not_told_are_those_of_the_folders(tmp_path: Path) -> None:
    photos = photo_tree(tmp_path / "photos", N)
    assert _folder_names(photos, 2) == ["cats", "dogs"]
    for source, why in (
        (photos, "has 2 class folders, and had 3 when listed"),
        (ImageFolder(tmp_path / "none"), "cannot be listed by this process: .*No such file"),
        (ImageFolder("s3://bucket/x"), "num_classes is 3"),
        (FileList(listed(tmp_path, ["cat"])), "num_classes is 3"),
    ):
        with pytest.raises(AttributeError, match=why):
            _folder_names(source, 3)


def test_names_of_classes_are_missing_where_they_are_unknown(tmp_path: Path) -> None:
    for source, why in (
        (SyntheticImages(N, 16), "SyntheticImages.* are integers without names"),
        (FileList(listed(tmp_path, ["3", "0"])), "are integers without names.* num_classes is 4"),
    ):
        with client(source) as train:
            assert not hasattr(train.dataset, "classes")
            with pytest.raises(AttributeError, match=why):
                _ = train.dataset.class_to_idx


def test_it_prints_what_it_is() -> None:
    text = repr(client(SyntheticImages(N, 16), seed=5, job="me"))
    for word in ("SyntheticImages(n=13", "RandomResizedCrop(size=(8, 8)", "batch_size=4", "seed=5", "job='me'"):
        assert word in text


def test_skipping_batches_by_a_sampler_says_what_to_do() -> None:
    train = client(SyntheticImages(N, 16))
    # as accelerate's skip_first_batches does
    skipping: Any = DataLoader(train.dataset, batch_sampler=train.batch_sampler)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"load_state_dict\(\), not accelerate's skip_first_batches"):
        next(iter(skipping))


_IN_WORKERS = """
from torch.utils.data import DataLoader, IterableDataset
from prepclient import ForkedClient, PrepClient, RandomResizedCrop, SyntheticImages

class Holder(IterableDataset):
    def __iter__(self):
        return iter(train)

train = PrepClient(SyntheticImages(13, 16), [RandomResizedCrop(8)], batch_size=4, inline=True)
assert len(list(DataLoader(Holder(), batch_size=None, num_workers=1))) == 4
try:
    next(iter(DataLoader(Holder(), batch_size=None, num_workers=2)))
except ForkedClient as e:
    print(e)
"""


def test_dataloader_workers_that_would_each_get_all_are_refused() -> None:
    """In a process of its own: after an error, a DataLoader's workers stay, and its finalizer may run in another's."""
    command = [sys.executable, "-W", "ignore", "-c", _IN_WORKERS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert re.search(r"each of the 2 workers .* num_workers=0", done.stdout)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_around_it_says_to_leave_it_out(workers: int) -> None:
    with client(SyntheticImages(N, 16)) as train, pytest.raises(TypeError, match="without a DataLoader"):
        next(iter(DataLoader(train, batch_size=4, num_workers=workers)))  # type: ignore[arg-type]


def test_numpy_takes_it_for_one_object() -> None:
    with client(SyntheticImages(N, 16)) as train:
        assert np.asarray(train).shape == ()
        assert train.stats()["batches"] == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_it_is_neither_pickled_nor_copied(copied: Any) -> None:
    with pytest.raises(TypeError, match=r"pickled or copied.*state_dict"):
        copied(client(SyntheticImages(N, 16)))


@pytest.mark.parametrize("of", [np.int64, torch.tensor])
def test_a_state_whose_numbers_changed_type_on_the_way_is_loaded(of: Any) -> None:
    with client(SyntheticImages(N, 16)) as train:
        next(iter(train))
        state = train.state_dict()
    with client(SyntheticImages(N, 16)) as train:
        train.load_state_dict({name: of(x) if isinstance(x, int) else x for name, x in state.items()})
        assert train.state_dict() == state
        assert len(list(train)) == 3


def test_a_second_iterator_ends_the_first_with_advice() -> None:
    with client(SyntheticImages(N, 16)) as train, pytest.raises(RuntimeError, match="their own PrepClient"):
        list(zip(train, train, strict=False))


def test_two_threads_at_once_are_an_error_and_turns_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    train = PrepClient(SyntheticImages(N, 16), [RandomResizedCrop(8)], batch_size=4, inline=True)
    waits, may_go_on, step = threading.Event(), threading.Event(), train._loop.step

    def slow_step() -> tuple[Any, Session, Handed]:
        waits.set()
        assert may_go_on.wait(PATIENCE_S)
        return step()

    monkeypatch.setattr(train._loop, "step", slow_step)
    batches, state = iter(train), train.state_dict()
    got: list[Any] = []
    other = threading.Thread(target=lambda: got.append(next(batches)))
    other.start()
    assert waits.wait(PATIENCE_S)
    for use in (
        lambda: next(batches), lambda: iter(train), train.close, lambda: train.set_epoch(5),
        lambda: train.load_state_dict(state),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="by two threads at once"):
            use()
    assert (len(train), train.samples, train.epoch) == (4, N, 0)
    may_go_on.set()
    other.join(PATIENCE_S)
    got += list(batches)
    assert sum(len(labels) for _, labels in got) == N
    train.close()


def test_careless_threads_get_each_batch_once_or_an_error() -> None:
    train = PrepClient(SyntheticImages(300, 16), [RandomResizedCrop(2)], batch_size=1, inline=True, fields=("index",))
    batches = iter(train)
    got: list[int] = []
    refused: list[str] = []

    def read() -> None:
        while True:
            try:
                (index,) = next(batches)
            except StopIteration:
                return
            except RuntimeError as e:
                refused.append(str(e))
            else:
                got.append(int(index))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(before)
    assert sorted(got) == list(range(300))
    assert refused
    assert all("by two threads at once" in text for text in refused)


def test_what_a_thread_left_undone_another_one_takes_up() -> None:
    with client(SyntheticImages(N, 16)) as train:
        batches = iter(train)
        got = [next(batches)]
        with ThreadPoolExecutor(1) as threads, pytest.MonkeyPatch.context() as patch:
            patch.setattr(InlineFeed, "wait", breaks_off)
            with pytest.raises(KeyboardInterrupt):
                threads.submit(next, batches).result(60.0)
            patch.undo()
            got += batches
        assert sum(len(labels) for _, labels in got) == N


def breaks_off(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_its_sampler_says_whether_samples_are_shuffled(shuffle: bool | str) -> None:
    """As Lightning asks before it repeats the first batches (`overfit_batches`)."""
    with client(SyntheticImages(N, 16), shuffle=shuffle) as train:
        for sampler in (train.sampler, train.batch_sampler.sampler):
            assert isinstance(sampler, torch.utils.data.SequentialSampler) == (not shuffle)
            assert len(sampler) == N
