"""Keywords that have moved into records work for one release, with a warning that shows the new form."""

from __future__ import annotations

from typing import Any

import pytest

from prepclient import InvalidSpec, Joining, PrepClient, RandomResizedCrop, Sharding, SyntheticImages
from prepclient.deprecated import moved

SOURCE, OPS = SyntheticImages(8, 16), [RandomResizedCrop(8)]


@pytest.mark.parametrize(
    ("old", "sharding", "joining", "shown"),
    [
        ({"rank": 1, "world_size": 2}, Sharding(1, 2), None, "sharding=Sharding(rank=1, world_size=2)"),
        (
            {"num_shards": 3, "shard_index": 2}, Sharding(num_shards=3, shard_index=2), None,
            "sharding=Sharding(num_shards=3, shard_index=2)",
        ),
        ({"join_wait_s": 5, "start": "first"}, None, Joining("first", 5), "joining=Joining(start='first', wait_s=5)"),
        ({"lag": "wait"}, None, Joining(lag="wait"), "joining=Joining(lag='wait')"),
    ],
)  # fmt: skip
def test_old_keywords_mean_the_new_records(
    old: dict[str, Any], sharding: Sharding | None, joining: Joining | None, shown: str
) -> None:
    given = {**old, "other": 1}
    *found, text = moved(given, None, None)
    assert found == [sharding, joining]
    assert given == {"other": 1}
    assert shown in text
    with (
        pytest.warns(DeprecationWarning, match="write") as warned,
        PrepClient(SOURCE, OPS, inline=True, job="j", **old) as train,
    ):
        assert len(list(train)) == len(train)
    assert shown in str(warned[0].message)
    assert warned[0].filename == __file__
    new: dict[str, Any] = {"sharding": sharding, "joining": joining}
    with PrepClient(SOURCE, OPS, inline=True, job="j", **new) as other:
        assert other.spec == train.spec


def test_both_records_at_once_and_beside_new_ones() -> None:
    found = moved({"rank": 0, "world_size": 4, "lag": "wait"}, Sharding(num_shards=2, shard_index=1), Joining("any"))
    assert found[:2] == (Sharding(0, 4, 2, 1), Joining("any", lag="wait"))
    assert found[2].count("write") == 2
    assert moved({}, None, None) == (None, None, "")


def test_an_old_keyword_is_checked_as_ever() -> None:
    with pytest.raises(InvalidSpec, match="rank and world_size come together"):
        PrepClient(SOURCE, OPS, inline=True, rank=1)  # type: ignore[arg-type]
