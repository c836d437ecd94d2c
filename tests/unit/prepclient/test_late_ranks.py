"""Where a client goes on that was alone when it was made, and is one of two ranks now.

Ranks come from the launcher's variables here; `tests/integration/test_late_ranks.py` has real process groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from prepclient import CenterCrop, PrepClient, PrepClientError, Sharding, SyntheticImages

N, SIZE = 105, 10

Ranked = Callable[[int | None], None]


def client(sharding: Sharding | None = None) -> PrepClient:
    return PrepClient(
        SyntheticImages(N), [CenterCrop(8)], batch_size=SIZE, fields=("index",), job="j", inline=True, sharding=sharding
    )


def read(batches: Iterator[tuple[object, ...]] | PrepClient, count: int | None = None) -> list[int]:
    found: list[int] = []
    for number, (indices,) in enumerate(batches, 1):
        found += indices.tolist()
        if number == count:
            break
    return found


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> Ranked:
    """Makes this process that rank of two; with None, and before the first call, it is alone."""

    def become(rank: int | None) -> None:
        for name, value in (("RANK", rank), ("WORLD_SIZE", 2)):
            if rank is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))

    become(None)
    return become


def fail_once(train: PrepClient, error: type[BaseException]) -> None:
    maker = train._attachment._maker

    def step(_timeout_s: float) -> None:
        raise error("on purpose")

    maker.step = step  # type: ignore[union-attr, method-assign]


def test_after_an_error_all_ranks_go_on_at_the_same_batch(ranked: Ranked) -> None:
    rest: list[int] = []
    for rank in range(2):
        ranked(None)
        with client() as train:
            batches = iter(train)
            assert read(batches, 3) == list(range(30))
            fail_once(train, PrepClientError)
            with pytest.raises(PrepClientError, match="on purpose"):
                next(batches)
            ranked(rank)
            rest += read(train)
            assert train.epoch == 1
    assert sorted(rest) == list(range(30, N))


def test_a_loaded_place_is_kept_whatever_was_read_before(ranked: Ranked) -> None:
    rest: list[int] = []
    for rank in range(2):
        ranked(None)
        with client() as train:
            read(train)
            read(iter(train), 4)
            state = train.state_dict()
            train.load_state_dict(state)
            assert len(train) == 11
            ranked(rank)
            assert (len(train.sampler), len(train)) == (53, 6)
            rest += read(train)
            assert train.epoch == 2
    assert sorted(rest) == list(range(40, N))


def test_a_running_epoch_keeps_its_ranks(ranked: Ranked) -> None:
    """Even if it attaches anew, after an interrupt; then `len` is still that of this epoch."""
    with client() as train:
        batches = iter(train)
        read(batches, 3)
        ranked(0)
        fail_once(train, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert read(batches) == list(range(30, N))
        assert len(read(train)) == 52


@pytest.mark.parametrize("count", [1, 8])
def test_an_epoch_that_was_read_in_part_begins_once_more(count: int, ranked: Ranked) -> None:
    with client() as train:
        read(iter(train), count)
        train.close()
        ranked(1)
        assert read(train)[:SIZE] == list(range(SIZE, 2 * SIZE))
        assert train.epoch == 1


def test_what_sharding_says_stays(ranked: Ranked) -> None:
    with client(Sharding(num_shards=2, shard_index=1)) as train:
        ranked(0)
        assert len(read(train)) == N // 2
    with client(Sharding(0, 1)) as train:
        ranked(1)
        assert read(train) == list(range(N))


def test_the_old_iterator_has_ended(ranked: Ranked) -> None:
    with client() as train:
        batches = iter(train)
        read(batches, 2)
        ranked(0)
        iter(train)
        with pytest.raises((RuntimeError, StopIteration)):
            next(batches)
