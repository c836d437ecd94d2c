"""`PrepClient(inline=True)`: the client's promises where no daemon can be blamed."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepclient import (
    BadSampleError,
    CenterCrop,
    ColorJitter,
    ImageFolder,
    InvalidSpec,
    Joining,
    Jsonl,
    MaskTokens,
    MemoryRefused,
    PadTokens,
    PrepClient,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Sharding,
    SourceUnavailable,
    SyntheticImages,
    ToDtype,
    Tokenize,
    forks,
    kinds,
)
from prepclient.inline import InlineFeed
from prepserver.inline import InlineMaker
from tests.support.device_client import DeviceClient
from tests.support.leaks import descriptors
from tests.support.tiny_images import photo_tree
from tests.support.torch_threads import interrupt_leaves_threads, interrupted

N = 13


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    return photo_tree(tmp_path_factory.mktemp("photos"), N).root


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sample 5 is no image."""
    return photo_tree(tmp_path_factory.mktemp("broken"), N, frozenset({5})).root


def client(root: str, **changed: Any) -> PrepClient:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "fields": "dict"}
    ops = changed.pop("ops", [RandomResizedCrop(16), RandomHorizontalFlip()])
    return PrepClient(ImageFolder(root), ops, inline=True, **(arguments | changed))


def indices(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["index"].tolist()]


def joined(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([b[name] for b in batches]) for name in ("image", "label", "index")}


@pytest.mark.parametrize("shuffle", [True, False, "full"])
def test_each_epoch_has_every_sample_exactly_once(photos: str, shuffle: Any) -> None:
    with client(photos, shuffle=shuffle) as train:
        epochs = [list(train) for _ in range(3)]
    for batches in epochs:
        assert sorted(indices(batches)) == list(range(N))
        assert [len(b["label"]) for b in batches] == [4, 4, 4, 1]
    assert (indices(epochs[0]) == indices(epochs[1])) == (shuffle is False)
    assert not torch.equal(joined(epochs[0])["image"], joined(epochs[1])["image"])


def test_lengths_are_those_of_a_dataloader(photos: str) -> None:
    with client(photos) as train, client(photos, drop_last=True) as whole:
        assert (len(train), len(whole), train.samples, train.num_classes) == (4, 3, N, 2)
        iterator = iter(train)
        assert len(iterator) == 4  # type: ignore[arg-type]
        next(iterator)
        assert len(iterator) == 3  # type: ignore[arg-type]
        assert [len(b["label"]) for b in whole] == [4, 4, 4]


def test_an_epoch_without_its_last_rows_begins_like_the_whole(photos: str) -> None:
    with client(photos, drop_last=True) as part, client(photos) as whole:
        for _ in range(2):
            assert indices(part) == indices(whole)[:12]


def test_equal_seeds_give_equal_bytes_and_others_give_others(photos: str) -> None:
    first, again, other = (joined(list(client(photos, seed=seed))) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], other["image"])


def test_the_batch_size_changes_no_row(photos: str) -> None:
    a, b = (joined(list(client(photos, batch_size=size))) for size in (4, 13))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_labels_are_those_of_the_folders(photos: str) -> None:
    got = joined(list(client(photos)))
    assert got["label"].tolist() == [0 if i < N // 2 else 1 for i in got["index"].tolist()]


def test_leaving_an_epoch_and_iterating_again_begins_the_next(photos: str) -> None:
    with client(photos) as train, client(photos) as reference:
        for _ in train:
            break
        assert train.epoch == 0
        list(reference)
        assert indices(train) == indices(reference)
        assert train.epoch == reference.epoch == 2


def test_an_old_iterator_is_refused(photos: str) -> None:
    with client(photos) as train:
        old = iter(train)
        next(old)
        iter(train)
        with pytest.raises(RuntimeError, match="of an earlier epoch"):
            next(old)


@pytest.mark.parametrize("move", ["set_epoch", "load_state_dict", "close"])
def test_an_iterator_is_refused_after_a_move_or_close(photos: str, move: str) -> None:
    with client(photos) as train:
        old = iter(train)
        next(old)
        if move == "set_epoch":
            train.set_epoch(5)
        elif move == "load_state_dict":
            train.load_state_dict(train.state_dict())
        else:
            train.close()
        with pytest.raises(RuntimeError, match="closed or moved since"):
            next(old)


def test_an_unread_iterator_goes_to_the_epoch_that_is_set(photos: str) -> None:
    """Lightning sets the epoch after `iter`; a second `fit` begins at epoch 0 again."""
    with client(photos) as train:
        epochs = [indices(train) for _ in range(2)]
        for epoch in (0, 1):
            unread = iter(train)
            train.sampler.set_epoch(epoch)
            assert operator.length_hint(unread) == len(train)
            assert [i for batch in unread for i in batch["index"].tolist()] == epochs[epoch]
        assert train.epoch == 2


def test_an_iterator_that_has_ended_stays_ended(photos: str) -> None:
    with client(photos) as train:
        ended = iter(train)
        list(ended)
        list(train)
        assert list(ended) == []


@pytest.mark.parametrize(("forked", "where"), [(True, (InlineFeed, "wait")), (False, (InlineMaker, "fill"))])
def test_an_interrupt_in_a_step_leaves_torch_its_threads(
    photos: str, forked: bool, where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a step in a forked child, and elsewhere the making of rows, are limited to one thread."""
    with client(photos) as train, monkeypatch.context() as patch:
        patch.setattr(forks, "_imported_by", os.getpid() - forked)
        patch.setattr(*where, interrupted)
        with interrupt_leaves_threads():
            next(iter(train))


def test_setting_the_next_epoch_changes_nothing(photos: str) -> None:
    """Setting another one goes there."""
    with client(photos) as train, client(photos) as reference:
        epochs = [indices(reference) for _ in range(4)]
        for epoch in (0, 1):
            train.set_epoch(epoch)
            assert indices(train) == epochs[epoch]
        train.set_epoch(3)
        assert indices(train) == epochs[3]
        train.set_epoch(1)
        assert indices(train) == epochs[1]


def test_an_epoch_can_be_set_before_first_use_and_midway(photos: str) -> None:
    with client(photos) as train, client(photos) as reference:
        list(reference)
        second = indices(reference)
        train.set_epoch(1)
        assert train.epoch == 1
        next(iter(train))
        train.set_epoch(1)
        assert indices(train) == second


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None, 2**40])
def test_what_is_no_epoch_is_refused(photos: str, epoch: Any) -> None:
    with pytest.raises(InvalidSpec, match="epoch = "):
        client(photos).set_epoch(epoch)


@pytest.mark.parametrize("shuffle", [True, False, "full"])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 13])
def test_a_state_goes_on_at_the_next_sample_with_any_batch_size(photos: str, shuffle: Any, batch_size: int) -> None:
    with client(photos, shuffle=shuffle) as whole:
        list(whole)
        expected, after = joined(list(whole)), joined(list(whole))
    with client(photos, shuffle=shuffle) as saved:
        list(saved)
        iterator = iter(saved)
        for _ in range(2):
            next(iterator)
        state = saved.state_dict()
    assert (state["epoch"], state["epoch_start"], state["position"]) == (1, N, N + 8)
    with client(photos, shuffle=shuffle, batch_size=batch_size) as loaded:
        loaded.load_state_dict(state)
        assert loaded.state_dict() == state
        rest, following = joined(list(loaded)), joined(list(loaded))
    assert all(torch.equal(rest[name], expected[name][8:]) for name in rest)
    assert all(torch.equal(following[name], after[name]) for name in following)


def test_an_iterator_that_is_dropped_unread_costs_no_batch(photos: str) -> None:
    """As Lightning does, to see whether it works. Once a batch was read, the next loop is the next epoch."""
    with client(photos) as saved, client(photos) as loaded:
        whole, after = indices(saved), indices(saved)
        saved.set_epoch(0)
        next(iter(saved))
        loaded.load_state_dict(saved.state_dict())
        iter(loaded)
        first = next(iter(loaded))["index"].tolist()
        assert first == whole[4:8]
        assert indices(loaded) == after


def test_a_state_taken_between_epochs_begins_the_next(photos: str) -> None:
    with client(photos) as saved, client(photos) as loaded:
        list(saved)
        loaded.load_state_dict(saved.state_dict())
        assert loaded.epoch == 1
        assert indices(loaded) == indices(saved)


def test_a_state_taken_before_first_use_begins_at_the_start(photos: str) -> None:
    with client(photos) as saved, client(photos) as loaded:
        loaded.load_state_dict(saved.state_dict())
        assert indices(loaded) == indices(saved)


def test_naming_the_epoch_of_a_loaded_state_keeps_its_place(photos: str) -> None:
    """Naming another one leaves that place."""
    with client(photos) as saved:
        next(iter(saved))
        state = saved.state_dict()
    with client(photos) as kept, client(photos) as moved:
        kept.load_state_dict(state)
        kept.set_epoch(0)
        assert len(indices(kept)) == N - 4
        moved.load_state_dict(state)
        moved.set_epoch(2)
        assert (len(indices(moved)), moved.epoch) == (N, 3)


def test_the_state_survives_closing(photos: str) -> None:
    train = client(photos)
    next(iter(train))
    before = train.state_dict()
    train.close()
    train.close()
    assert train.state_dict() == before
    assert before["position"] == 4


def test_after_closing_in_the_middle_the_next_epoch_begins(photos: str) -> None:
    train = client(photos)
    next(iter(train))
    train.close()
    assert len(indices(train)) == N
    assert train.epoch == 2
    train.close()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"spec": "other"},
        {"position": "4"},
        {"position": None},
        {"epoch": -1},
        {"epoch_start": 1.5},
        {"more": 1},
    ],
)
def test_what_is_no_state_of_this_stream_is_refused(photos: str, change: dict[str, Any]) -> None:
    with client(photos) as train:
        next(iter(train))
        state = train.state_dict() | change
        with pytest.raises(InvalidSpec):
            train.load_state_dict(state)
        assert train.state_dict()["position"] == 4


def test_a_position_outside_its_epoch_is_refused(photos: str) -> None:
    with client(photos) as train:
        train.load_state_dict(train.state_dict() | {"epoch_start": 0, "position": N + 1})
        with pytest.raises(InvalidSpec, match=f"position {N + 1} is not in the epoch"):
            iter(train)


def test_a_bad_sample_raises_with_index_and_path(broken: str) -> None:
    """The loop may go on after it."""
    with client(broken) as train:
        got, errors = [], []
        iterator = iter(train)
        while True:
            try:
                got.append(next(iterator))
            except BadSampleError as e:
                errors.append(e)
            except StopIteration:
                break
        assert [e.index for e in errors] == [5]
        assert "0005.jpg" in errors[0].reason
        assert "on_error='skip'" in str(errors[0])
        assert len(got) == 3
        assert 5 not in indices(got)
        assert train.epoch == 1
        assert train.state_dict()["position"] == N


def test_a_state_taken_at_a_bad_sample_begins_with_its_batch(broken: str) -> None:
    """So that the other rows of the batch are not lost; a later state goes on after it."""
    got: list[Any] = []
    with client(broken) as train:
        iterator = iter(train)
        with pytest.raises(BadSampleError):
            got.extend(iterator)
        state = train.state_dict()
        assert state["position"] == 4 * len(got)
        train.close()
        assert train.state_dict() == state
    with client(broken) as train:
        iterator = iter(train)
        with pytest.raises(BadSampleError):
            list(iterator)
        next(iterator)
        assert train.state_dict()["position"] == min(4 * len(got) + 8, N)
    with client(broken, on_error="skip") as train:
        train.load_state_dict(state)
        both = [*indices(got), *indices(list(train))]
    assert len(both) == N
    assert {*both} == {*range(N)} - {5}


def test_a_skipped_sample_is_replaced_by_its_neighbour(broken: str, photos: str) -> None:
    with client(broken, on_error="skip") as train, client(photos) as whole:
        got, expected = joined(list(train)), joined(list(whole))
        at = expected["index"].tolist().index(5)
        assert got["index"].tolist() == [6 if i == 5 else i for i in expected["index"].tolist()]
        kept = torch.arange(N) != at
        assert torch.equal(got["image"][kept], expected["image"][kept])
        assert train.stats()["bad_samples"] == 1
        assert train.stats()["sharing_factor"] == 1.0


def test_rows_without_samples_teach_nothing_and_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the first bad sample, the tenth, and so on."""
    (tmp_path / "words").write_text("a\nb\n")
    (tmp_path / "a.jsonl").write_text('{"text": 1}\n' * 12)
    columns = {"text": kinds.Text(), "label": kinds.Label()}
    source = Jsonl(tmp_path / "a.jsonl", columns, names={"label": "text"})
    ops = [Tokenize(tmp_path / "words"), PadTokens(3, pad=7), MaskTokens(1, 2, [7])]
    with PrepClient(source, ops, batch_size=4, on_error="skip", fields="dict", inline=True) as train:
        batches = list(train)
    expected = {"tokens": [7, 7, 7], "mask": [0, 0, 0], "labels": [-100, -100, -100], "label": -1, "index": -1}
    assert [{name: each.tolist() for name, each in batch.items()} for batch in batches] == [
        {name: [value] * 4 for name, value in expected.items()}
    ] * 3
    said = [message for message in caplog.messages if "could not be used" in message]
    assert [message.partition(" samples")[0] for message in said] == ["4 of 4", "12 of 12"]
    assert "One of the latest is sample 3: " in said[0]
    assert said[0].endswith("its text is 1, and must be text")


def test_a_masked_sample_is_replaced_and_marked(broken: str) -> None:
    with client(broken, on_error="mask") as train:
        batches = list(train)
        valid = torch.cat([b["valid"] for b in batches])
        assert valid.dtype == torch.bool
        assert (~valid).sum() == 1
        assert joined(batches)["index"][~valid].tolist() == [6]
    with client(broken, on_error="mask", fields="tuple") as train:
        images, labels, valid = next(iter(train))
        assert len(images) == len(labels) == len(valid) == 4


def test_a_tuple_has_images_and_labels(photos: str) -> None:
    with client(photos, fields="tuple") as pairs, client(photos) as maps:
        for (images, labels), batch in zip(pairs, maps, strict=True):
            assert set(batch) == {"image", "label", "index"}
            assert torch.equal(images, batch["image"])
            assert torch.equal(labels, batch["label"])
            assert images.dtype == torch.uint8
            assert images.shape[1:] == (3, 16, 16)
            assert images.is_contiguous(memory_format=torch.channels_last)


def test_views_come_as_a_tuple_in_the_place_of_the_images(photos: str) -> None:
    with client(photos, fields="tuple", views=2) as pairs, client(photos, fields="tuple") as plain:
        for _ in range(2):
            for ((one, two), labels), (images, expected) in zip(pairs, plain, strict=True):
                assert torch.equal(one, images)
                assert torch.equal(labels, expected)
                assert two.shape == one.shape
                assert all(view.is_contiguous(memory_format=torch.channels_last) for view in (one, two))
                assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        assert pairs.stats()["images"] == 2 * N
    with client(photos, fields=["label", "image"], views=3) as named:
        labels, views = next(iter(named))
        assert [len(labels), *map(len, views)] == [4] * 4


@pytest.mark.parametrize("changed", [{}, {"zero_copy": True}, {"normalize": ((0.5,), (0.2,))}, {"on_error": "mask"}])
def test_every_view_goes_the_way_of_an_only_one(photos: str, changed: dict[str, Any]) -> None:
    with client(photos, views=3, batch_size=5, **changed) as train, client(photos, batch_size=5, **changed) as plain:
        for _ in range(3):
            for batch, expected in zip(train, plain, strict=True):
                assert isinstance(batch["image"], tuple)
                first, *others = batch["image"]
                assert torch.equal(first, expected["image"])
                assert [(view.shape, view.stride(), view.dtype) for view in others] == [
                    (first.shape, first.stride(), first.dtype)
                ] * 2
                assert {name: value.tolist() for name, value in batch.items() if name != "image"} == {
                    name: value.tolist() for name, value in expected.items() if name != "image"
                }


@pytest.mark.parametrize(
    "more", [{}, {"ops": [RandomResizedCrop(16), ColorJitter(0.4)]}, {"device_ops": [ColorJitter(0.4)]}]
)
def test_views_have_the_bytes_of_their_numbers(photos: str, more: dict[str, Any]) -> None:
    """So that clients with other ops, read side by side, do not draw the same crops."""
    with client(photos, fields="tuple", views=4, **more) as one:
        expected = [images for images, _ in one]
    for numbers in (range(1, 2), range(2, 4)):
        with client(photos, fields="tuple", views=numbers, **more) as some:
            for images, (found, _) in zip(expected, some, strict=True):
                views = found if isinstance(found, tuple) else (found,)
                assert all(torch.equal(view, images[number]) for number, view in zip(numbers, views, strict=True))
                assert not any(torch.equal(view, images[0]) for view in views)


def test_views_that_are_kept_stay_what_they_were(photos: str) -> None:
    with client(photos, batch_size=2, views=3) as train:
        kept = [view for batch in train for view in batch["image"]]
        copies = [view.clone() for view in kept]
        for _ in range(2):
            list(train)
    assert all(torch.equal(view, copy) for view, copy in zip(kept, copies, strict=True))


def test_views_resume_from_a_checkpoint_of_as_many_views_only(photos: str) -> None:
    with client(photos, views=2) as train:
        iterator = iter(train)
        next(iterator)
        state = train.state_dict()
        rest = [batch["image"] for batch in iterator]
    with client(photos, views=2) as again:
        again.load_state_dict(state)
        got = [batch["image"] for batch in again]
    assert all(torch.equal(a, b) for x, y in zip(rest, got, strict=True) for a, b in zip(x, y, strict=True))
    with client(photos) as plain, pytest.raises(InvalidSpec, match="views"):
        plain.load_state_dict(state)


def test_batches_that_are_kept_stay_what_they_were(photos: str) -> None:
    with client(photos, batch_size=2) as train:
        kept = list(train)
        copies = [b["image"].clone() for b in kept]
        for _ in range(2):
            list(train)
    assert all(torch.equal(b["image"], c) for b, c in zip(kept, copies, strict=True))


def test_zero_copy_lends_the_same_rows(photos: str) -> None:
    with client(photos, zero_copy=True, batch_size=5) as lent, client(photos, batch_size=5) as fresh:
        for _ in range(3):
            for a, b in zip(lent, fresh, strict=True):
                assert torch.equal(a["image"], b["image"])
                assert torch.equal(a["index"], b["index"])


def test_types_and_normalisation_are_computed_from_the_same_rows(photos: str) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    plain = joined(list(client(photos)))["image"]
    half = joined(list(client(photos, dtype=torch.float16)))["image"]
    normal = joined(list(client(photos, normalize=(mean, std), zero_copy=True)))["image"]
    made = joined(
        list(client(photos, ops=[RandomResizedCrop(16), RandomHorizontalFlip(), ToDtype("float32", scale=True)]))
    )["image"]
    assert (half.dtype, normal.dtype, made.dtype) == (torch.float16, torch.float32, torch.float32)
    assert torch.allclose(half.float(), plain / 255, atol=1e-3)
    expected = (plain / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.allclose(normal, expected, atol=1e-5)
    assert torch.allclose(made, plain / 255, atol=0.5 / 255 + 1e-6)


def test_ranks_share_an_epoch_without_overlap(photos: str) -> None:
    ranks = [client(photos, batch_size=2, sharding=Sharding(rank, 3), job="run") for rank in range(3)]
    batches = [list(rank) for rank in ranks]
    assert len({len(b) for b in batches}) == 1
    assert sorted(i for b in batches for i in indices(b)) == list(range(N))


def test_synthetic_images_need_no_files() -> None:
    train = PrepClient(SyntheticImages(6, size=48), [RandomResizedCrop(16)], batch_size=4, inline=True, fields="dict")
    with train:
        assert indices(train) == list(range(6))
        assert train.stats()["images"] == 6


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_a_dataset_that_is_not_there_is_named(tmp_path: Path, kind: str) -> None:
    root = tmp_path / kind
    if kind == "empty":
        root.mkdir()
    with pytest.raises(SourceUnavailable, match=str(root)):
        len(client(str(root)))


def test_a_damaged_listing_is_an_error_and_made_again(photos: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{photos}-cache")
    with client(photos) as train:
        assert len(train) == 4
        (index,) = Path(f"{photos}-cache").rglob("*.idx")
        with index.open("r+b") as file:
            file.seek(index.read_bytes().index(b"0000.jpg"))
            file.write(b"9")
        with pytest.raises(SourceUnavailable, match=rf"{index}: damaged.*attach again.*sample \d"):
            next(iter(train))
    assert not index.exists()
    with client(photos) as train:
        assert sorted(indices(train)) == list(range(N))


@pytest.mark.parametrize(
    ("field", "changed"),
    [("on_error", {"on_error": "ignore"}), ("fields", {"fields": "list"}),
     ("fields", {"fields": np.array(["image", "label"])}), ("prefetch", {"prefetch": 0}),
     ("workers", {"workers": 0}), ("timeout_s", {"timeout_s": 0}), ("connect_s", {"connect_s": -1}),
     ("device", {"device": "warp:9"}), ("normalize", {"normalize": ((0.5, 0.5), (1.0, 1.0))}),
     ("dtype", {"dtype": torch.int32}), ("views", {"views": 0}), ("views", {"views": 17}), ("views", {"views": "2"})],
)  # fmt: skip
def test_an_argument_that_cannot_be_is_refused_at_once_by_name(field: str, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=field) as e:
        client("/never/looked/at", **changed)
    assert e.value.field == field


def test_a_dropped_client_leaves_no_descriptor(photos: str) -> None:
    def used() -> Iterator[int]:
        with client(photos) as train:
            yield from indices(train)

    list(used())
    before = descriptors()
    for _ in range(3):
        list(used())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("shuffle", [True, False, "full"])
@pytest.mark.parametrize("shards", [2, 3, 5])
def test_shards_have_each_sample_once_with_bytes_of_the_whole(photos: str, shuffle: Any, shards: int) -> None:
    def rows(batches: Any) -> list[tuple[int, bytes]]:
        return [
            (int(i), image.numpy().tobytes()) for b in batches for i, image in zip(b["index"], b["image"], strict=True)
        ]

    parts = [
        client(photos, shuffle=shuffle, sharding=Sharding(num_shards=shards, shard_index=s), batch_size=2)
        for s in range(shards)
    ]
    assert len({len(part) for part in parts}) == 1
    assert {part.samples for part in parts} == {N}
    with client(photos, shuffle=shuffle) as whole:
        for _ in range(2):
            epoch = [list(part) for part in parts]
            assert {len(batches) for batches in epoch} == {len(parts[0])}
            assert sorted(row for batches in epoch for row in rows(batches)) == sorted(rows(whole))


def test_a_state_of_any_shard_serves_all_and_other_numbers(photos: str) -> None:
    def part(s: int, count: int, **changed: Any) -> PrepClient:
        return client(photos, sharding=Sharding(num_shards=count, shard_index=s), **{"batch_size": 2, **changed})

    taken, states = [], []
    for s in range(2):
        with part(s, 2) as train:
            list(train)
            iterator = iter(train)
            taken += indices([next(iterator), next(iterator)])
            states.append(train.state_dict())
    assert states[0] == states[1]
    assert (states[0]["epoch"], states[0]["epoch_start"], states[0]["position"]) == (1, N, N + 8)
    for count in (1, 2, 4):
        rest = []
        for s in range(count):
            with part(s, count, batch_size=1) as train:
                train.load_state_dict(states[1])
                assert train.state_dict() == states[1]
                rest += indices(train)
                assert train.epoch == 2
        assert sorted(taken + rest) == list(range(N))
    with part(0, 3) as train:
        train.load_state_dict(states[0])
        with pytest.raises(InvalidSpec, match="8 samples of the epoch were taken, which num_shards = 3 does not"):
            iter(train)
    with part(0, 2) as train, part(0, 3) as other:
        list(train)
        other.load_state_dict(train.state_dict())
        assert other.epoch == 1
        assert len(indices(other)) == 5


@pytest.mark.parametrize("shuffle", [True, False, "full"])
def test_batches_across_epochs_are_full_and_have_all_once_in_n(photos: str, shuffle: Any) -> None:
    """In n epochs, each sample comes n times."""
    with client(photos, shuffle=shuffle) as plain:
        expected = [i for _ in range(5) for i in indices(plain)]
    with client(photos, shuffle=shuffle, order="shuffle-repeat-batch") as train:
        found, lengths = [], []
        for epoch in range(4):
            assert train.epoch == epoch
            train.set_epoch(epoch)
            said = len(train)
            batches = list(train)
            assert {len(b["label"]) for b in batches} == {4}
            lengths.append(len(batches))
            assert said == lengths[-1]
            found += indices(batches)
    assert lengths == [4, 3, 3, 3]
    assert found == expected[: 4 * N]


def test_batches_across_epochs_go_on_after_break_state_and_close(photos: str) -> None:
    def crossing(**changed: Any) -> PrepClient:
        return client(photos, order="shuffle-repeat-batch", **changed)

    with crossing(batch_size=5) as plain:
        epochs = [indices(plain) for _ in range(4)]
    with crossing(batch_size=5) as train:
        assert indices(train) == epochs[0]
        state = train.state_dict()
        assert (state["epoch"], state["epoch_start"], state["position"]) == (1, N, 15)
        iterator = iter(train)
        first = indices([next(iterator)])
        middle = train.state_dict()
        train.close()
        assert train.state_dict() == middle
    for size in (5, 2, 13):
        with crossing(batch_size=size) as loaded:
            loaded.load_state_dict(middle)
            assert loaded.state_dict() == middle
            rest = indices(loaded)
            assert rest[: len(epochs[1]) - 5] == epochs[1][5:][: len(rest)]
    assert first == epochs[1][:5]
    with crossing(batch_size=5) as left, client(photos) as whole:
        next(iter(left))
        list(whole)
        assert indices(left)[:N] == indices(whole)  # the next epoch begins where a pass does


def test_whole_batches_are_shuffled_and_the_short_one_stays_last(photos: str) -> None:
    with client(photos, order="batch-shuffle-repeat") as train, client(photos, order="batch-shuffle-repeat") as again:
        epochs = [[b["index"].tolist() for b in train] for _ in range(6)]
        again.set_epoch(4)
        assert [b["index"].tolist() for b in again] == epochs[4]
        assert len(train) == 4
        state = train.state_dict()
    for batches in epochs:
        assert sorted(batches[:3]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert batches[3] == [12]
    assert len({tuple(map(tuple, batches)) for batches in epochs}) > 1
    with (
        client(photos, order="batch-shuffle-repeat", batch_size=5) as other,
        pytest.raises(InvalidSpec, match="whole batches"),
    ):
        other.load_state_dict(state)
    with pytest.raises(InvalidSpec, match="shuffle"):
        client(photos, order="batch-shuffle-repeat", shuffle=False)
    with pytest.raises(InvalidSpec, match="order"):
        client(photos, order="repeat")


def test_a_run_begins_where_another_one_did(photos: str) -> None:
    with (
        client(photos) as train,
        client(photos, joining=Joining(start=0)) as again,
        client(photos, joining=Joining(start="first")) as first,
    ):
        assert train.stats()["start"] is None
        rows = indices(train)
        assert rows == indices(again) == indices(first)
        assert train.stats()["start"] == train.state_dict()["start"] == 0
    with client(photos, joining=Joining(start=N)) as later, client(photos) as train:
        train.set_epoch(1)
        assert indices(later) == indices(train)
        assert (later.stats()["start"], later.epoch) == (N, 1)
    with client(photos, joining=Joining(start=-2 * N)) as later, client(photos) as train:
        later.set_epoch(2)
        assert indices(later) == indices(train)


@pytest.mark.parametrize("start", ["last", 1.5, True, -(2**63)])
def test_a_start_that_cannot_be_is_named(photos: str, start: Any) -> None:
    with pytest.raises(InvalidSpec, match="start = "):
        client(photos, joining=Joining(start=start))


def test_a_start_before_position_0_is_refused(photos: str) -> None:
    with client(photos, joining=Joining(start=-1)) as train, pytest.raises(InvalidSpec, match="start = -1"):
        next(iter(train))


@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_a_start_at_which_no_epoch_begins_is_refused(photos: str, shuffle: Any) -> None:
    with (
        client(photos, shuffle=shuffle, joining=Joining(start=N + 1)) as train,
        pytest.raises(InvalidSpec, match=f"no epoch begins there .* the next place is {2 * N}"),
    ):
        next(iter(train))


@pytest.mark.parametrize("kind", [PrepClient, DeviceClient])
def test_rows_that_no_machine_holds_are_refused_as_by_a_daemon(kind: type[PrepClient]) -> None:
    sharding = Sharding(0, 2**16)  # a batch that fits, and a ring that does not
    huge = kind(SyntheticImages(8), [CenterCrop(16384)], sharding=sharding, job="j", inline=True)
    with pytest.raises(MemoryRefused, match="lower batch_size"):
        len(huge)
