"""What cannot be is refused before anything is sent, with field, value and what would be right."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import pytest

from prepclient import (
    BucketByLength,
    CenterCrop,
    ImageFolder,
    InvalidSpec,
    MaskTokens,
    Normalize,
    PadTokens,
    RandomResizedCrop,
    Resize,
    SyntheticImages,
    TextLines,
    Tokenize,
)
from prepclient.sharding import Ranks, Sharding, find_ranks
from prepclient.spec import Spec, make_spec
from prepserver.pipeline.batches import Batching
from prepserver.pipeline.shard import Shard


def spec(source: Any = None, ops: Any = None, **changed: Any) -> Spec:
    arguments: dict[str, Any] = {
        "batch_size": 4, "shuffle": True, "seed": 0, "drop_last": False,
    }  # fmt: skip
    part = {name: changed.pop(name) for name in ("rank", "world_size", "num_shards", "shard_index") if name in changed}
    changed |= {"sharding": Sharding(**part)} if part else {}
    ops = [RandomResizedCrop(32)] if ops is None else ops
    return make_spec(SyntheticImages(10) if source is None else source, ops, **(arguments | changed))


@pytest.mark.parametrize(("said", "word"), [(False, "none"), (True, "cyclic"), ("full", "full")])
def test_an_order_has_its_word_on_the_wire(said: Any, word: str) -> None:
    assert spec(shuffle=said).shuffle == word


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("shuffle", {"shuffle": "cyclic"}), ("shuffle", {"shuffle": None}), ("shuffle", {"shuffle": ["full"]}),
        ("shuffle", {"shuffle": 2}),
        ("batch_size", {"batch_size": 0}), ("batch_size", {"batch_size": 2.0}), ("batch_size", {"batch_size": True}),
        ("batch_size", {"batch_size": 2**20 + 1}),
        ("seed", {"seed": -1}), ("seed", {"seed": 2**63}), ("seed", {"seed": None}),
        ("rank", {"rank": 2, "world_size": 2, "job": "j"}), ("rank", {"rank": -1, "world_size": 2, "job": "j"}),
        ("rank", {"world_size": 2}), ("world_size", {"rank": 0}),
        ("world_size", {"rank": 0, "world_size": 0}), ("world_size", {"rank": 0, "world_size": 2**17}),
        ("num_shards", {"num_shards": 0, "shard_index": 0}), ("num_shards", {"num_shards": "2", "shard_index": 0}),
        ("num_shards", {"shard_index": 0}), ("shard_index", {"num_shards": 2}),
        ("shard_index", {"num_shards": 2, "shard_index": 2}), ("shard_index", {"num_shards": 1, "shard_index": 1}),
        ("views", {"views": 0}), ("views", {"views": 17}), ("views", {"views": 2.0}), ("views", {"views": True}),
        ("job", {"rank": 0, "world_size": 2}), ("job", {"job": ""}), ("job", {"job": "x" * 257}), ("job", {"job": 5}),
        ("job", {"job": "two\nlines"}), ("job", {"job": "\x1b[31mred"}),
        ("source", {"source": "/data"}), ("source", {"source": {"source": "synthetic"}}),
        ("ops", {"ops": RandomResizedCrop(32)}), ("ops", {"ops": "RandomResizedCrop"}),
        ("pipeline[1].mean", {"ops": [RandomResizedCrop(32), Normalize([0.5], [0.5])]}),
        ("pipeline[0]", {"ops": [Resize(32)]}), ("pipeline", {"ops": ["crop"]}),
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_is_named(field: str, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as e:
        spec(**changed)
    assert e.value.__cause__ is None  # which would show the error twice
    assert e.value.field.startswith(field.split("[")[0])
    assert e.value.field.split(".")[0].split("[")[0] in str(e.value)
    if field == "pipeline[1].mean":
        assert field.rsplit(".", 1)[1] in e.value.field


def test_a_script_of_an_odd_name_gives_a_job_a_printable_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/two\nlines.py"])
    assert spec().job.startswith("two_lines.py-")


@pytest.mark.parametrize(("script", "job"), [("-", "stdin-"), ("-c", "python-"), ("", "python-")])
def test_a_program_without_a_file_gives_a_job_a_name(script: str, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [script])
    assert spec().job.startswith(job)


def test_the_digest_names_the_rows_and_not_how_they_are_cut() -> None:
    digest = spec().digest
    assert spec(views=1).digest == digest
    assert spec(batch_size=9, drop_last=True, sharding=Sharding(0, 3), job="j").digest == digest
    others = [
        spec(seed=1), spec(shuffle=False), spec(SyntheticImages(11)), spec(ImageFolder("/a")),
        spec(ops=[RandomResizedCrop(33)]), spec(ops=[Resize(40), CenterCrop(32)]),
        spec(views=2), spec(views=3),
    ]  # fmt: skip
    assert len({digest, *(o.digest for o in others)}) == 1 + len(others)


def test_batch_size_is_part_of_rows_where_batches_are_shuffled() -> None:
    assert spec(order="shuffle-repeat-batch").digest == spec().digest
    assert spec(sharding=Sharding(num_shards=2, shard_index=1)).digest == spec().digest
    sharded = [
        spec(order="batch-shuffle-repeat", shuffle="full", sharding=Sharding(num_shards=k, shard_index=0))
        for k in (1, 2, 3)
    ]
    assert len({s.digest for s in sharded}) == 3
    last = spec(order="batch-shuffle-repeat", shuffle="full", sharding=Sharding(num_shards=3, shard_index=2))
    assert last.digest == sharded[-1].digest  # one state for all shards
    whole = [spec(order="batch-shuffle-repeat", batch_size=size) for size in (4, 5)]
    assert len({spec().digest, spec(shuffle="full").digest, *(o.digest for o in whole)}) == 4
    assert [o.shuffle for o in whole] == ["full", "full"]


def test_alone_a_process_is_rank_0_of_1() -> None:
    assert find_ranks(Sharding(), {}) == Ranks(0, 1, None)
    assert find_ranks(Sharding(), {"RANK": "3"}) == Ranks(0, 1, None)


@pytest.mark.parametrize("order", get_args(Batching))
@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_lengths_that_are_mixed_again_are_told(order: str, shuffle: Any, caplog: pytest.LogCaptureFixture) -> None:
    if not shuffle and order == "batch-shuffle-repeat":
        return  # refused
    source = BucketByLength(TextLines("/a"))
    make = partial(spec, ops=[Tokenize("/words", code="0" * 64), PadTokens(4)], order=order, shuffle=shuffle)
    make(TextLines("/a"))
    assert not caplog.messages
    make(source)
    told = bool(shuffle) and order != "batch-shuffle-repeat"
    assert [text.startswith("BucketByLength sorts samples by length") for text in caplog.messages] == [True] * told


@pytest.mark.parametrize("mask", ["mask", None])
def test_padding_that_is_masked_is_told(mask: str | None, caplog: pytest.LogCaptureFixture) -> None:
    for special, told in (
        ([3, 7], []),
        ([3], ["MaskTokens hides and predicts padding, too: its special tokens [3] lack 7"]),
    ):
        ops = [Tokenize("/words", code="0" * 64), PadTokens(4, pad=7, mask=mask), MaskTokens(1, 9, special)]
        spec(TextLines("/a"), ops=ops)
        assert caplog.messages == told


def test_what_is_given_comes_before_the_launchers_word() -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert find_ranks(Sharding(1, 4), environ) == Ranks(1, 4, None)
    assert find_ranks(Sharding(), environ) == Ranks(3, 8, (2, 2))


def test_ranks_that_are_all_here_are_not_a_part() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert find_ranks(Sharding(), environ) == Ranks(1, 2, None)


def test_machines_are_shards_where_the_launcher_has_all_alike() -> None:
    torchrun = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }  # fmt: skip
    assert find_ranks(Sharding(), torchrun) == Ranks(1, 4, None, Shard(2, 1))
    assert find_ranks(Sharding(num_shards=1), torchrun) == Ranks(5, 8, (4, 4))
    assert find_ranks(Sharding(num_shards=4, shard_index=2), torchrun) == Ranks(1, 4, None, Shard(4, 2))
    assert find_ranks(Sharding(5, 8), torchrun) == Ranks(5, 8, None)
    for doubtful in ({"GROUP_WORLD_SIZE": "3"}, {"GROUP_RANK": "0"}):
        assert find_ranks(Sharding(), torchrun | doubtful) == Ranks(5, 8, (4, 4))
    del torchrun["GROUP_RANK"]
    assert find_ranks(Sharding(), torchrun) == Ranks(5, 8, (4, 4))
    alone = {**torchrun, "RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    assert find_ranks(Sharding(), alone) == Ranks(1, 4, None)


def test_with_given_shards_ranks_count_processes_of_one_shard() -> None:
    assert find_ranks(Sharding(1, 4, 2, 1), {}) == Ranks(1, 4, None, Shard(2, 1))
    assert find_ranks(Sharding(num_shards=2, shard_index=1), {}) == Ranks(0, 1, None, Shard(2, 1))
    with pytest.raises(InvalidSpec, match="processes of one shard"):
        find_ranks(Sharding(num_shards=2, shard_index=1), {"RANK": "3", "WORLD_SIZE": "8"})


@pytest.mark.parametrize(
    ("environ", "field"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank"),
        ({"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "a", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK"),
        ({"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_RANK"),
        ({"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_RANK"),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_RANK"),
    ],
)
def test_a_launcher_that_contradicts_itself_is_named(environ: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidSpec) as e:
        find_ranks(Sharding(), environ)
    assert e.value.field == field
    assert field in str(e.value)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TORCHELASTIC_RUN_ID": "run7"}, "run7"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "99"}, "99"),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "2900"}, "node1:2900"),
    ],
)
def test_ranks_of_a_run_share_a_name_from_their_launcher(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], name: str
) -> None:
    for key in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    assert {spec(sharding=Sharding(rank, 2)).job for rank in (0, 1)} == {spec(sharding=Sharding(0, 2)).job}
    assert spec(sharding=Sharding(0, 2)).job.startswith(name)
