"""Tables and texts through a daemon: the same rows with any number of workers, and errors that name file and line."""

from __future__ import annotations

import io
import os
import signal
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from prepclient import (
    BucketByLength,
    Csv,
    HuggingFace,
    MaskTokens,
    PackTokens,
    PadTokens,
    Parquet,
    PrepClient,
    RandomCrop,
    Tar,
    TextLines,
    Tokenize,
    Truncate,
)
from prepclient.errors import BadSampleError, InvalidSpec, SourceChanged, SourceUnavailable
from prepserver.pipeline.kinds import Array, Image, Label, Scalar, Text, Tokens
from prepserver.pipeline.ops import Op
from prepserver.pipeline.sources import SourceSpec
from tests.support.server import Server
from tests.support.texts import WORDS, tokenizer
from tests.support.tiny_images import jpeg
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def tables(folder: Path) -> dict[str, tuple[SourceSpec, Sequence[Op]]]:
    """Sources of 40 samples, and what is done to them."""
    (folder / "images").mkdir()
    for number in range(40):
        (folder / "images" / f"{number}.jpg").write_bytes(jpeg(number))
    lines = [f"images/{number}.jpg,{number % 7},{number / 2}" for number in range(40)]
    (folder / "a.csv").write_text("\n".join(["path,class,x", *lines]))
    images = [(folder / "images" / f"{number}.jpg").read_bytes() for number in range(40)]
    columns = {
        "image": pa.array([{"bytes": image, "path": None} for image in images]), "label": list(range(40)),
        "v": [[float(number), 0.5] for number in range(40)],
    }  # fmt: skip
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=7)
    # Longer than a row of `PackTokens`, and a text that is no UTF-8.
    words = tokenizer(folder / "a.json")
    (folder / "long.txt").write_text("\n".join(" ".join(WORDS[4:] * (k % 7)) + " a" for k in range(40)))
    long, plain = TextLines(folder / "long.txt"), Tokenize(words, special_tokens=False)
    texts = ["".join(f"{WORDS[4 + k * number % 6]} " for k in range(number % 9)) + "x" for number in range(40)]
    (folder / "a.txt").write_text("\n".join(texts))
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, (image, text) in enumerate(zip(images, texts, strict=True)):
            files = {"jpg": image, "txt": text.encode(), "json": b'{"of": {"x": %d}}' % number}
            for ending, data in files.items():
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    captions = {"image": Image(), "text": Text(), "x": Scalar("uint8")}
    ids = pa.table({"input_ids": [list(range(number % 9)) for number in range(40)]})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, ids.schema) as stream:
        stream.write_table(ids, max_chunksize=7)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    named = {"image": "path", "label": "class"}
    return {
        "tar": (
            Tar(folder / "a.tar", columns=captions, names={"text": "txt", "x": "json:of.x"}),
            [RandomCrop(16), Tokenize(words), Truncate(5), PadTokens(5)],
        ),
        "arrow": (
            HuggingFace(folder, columns={"tokens": Tokens()}, names={"tokens": "input_ids"}),
            [Truncate(5), PadTokens(5)],
        ),
        "csv": (Csv(folder / "a.csv", {"image": Image(), "label": Label(), "x": Scalar()}, named), [RandomCrop(16)]),
        "parquet": (Parquet(folder / "a.parquet", "image", "label", {"v": Array((2,))}), [RandomCrop(16)]),
        "text": (TextLines(folder / "a.txt"), [Tokenize(words), Truncate(5), PadTokens(5)]),
        "masked": (long, [Tokenize(words), Truncate(20), PadTokens(20, trim=True), MaskTokens(1, 9, [0])]),
        "packed": (PackTokens(long, plain, 16), []),
        "packed, masked": (PackTokens(long, plain, 16, beside=["segments"]), [MaskTokens(1, 9, [0])]),
    }


def rows(source: SourceSpec, ops: Sequence[Op], **where: object) -> list[tuple[torch.Tensor, ...]]:
    arguments = {"batch_size": 8, "shuffle": True, "seed": 5}
    with PrepClient(source, ops, **arguments, **where) as client:  # type: ignore[arg-type]
        return [tuple(part.clone() for part in batch) for _ in range(2) for batch in client]


@pytest.mark.parametrize("name", ["csv", "parquet", "tar", "arrow", "text", "masked", "packed", "packed, masked"])
def test_rows_are_the_same_with_two_workers_or_none(name: str, server: Server, tmp_path: Path) -> None:
    source, ops = tables(tmp_path)[name]
    expected = rows(source, ops, inline=True)
    assert len(expected) == 10 if "packed" not in name else len(expected) > 4
    assert len(expected[0]) == {"text": 2, "arrow": 2, "tar": 4, "masked": 4, "packed": 4}.get(name, 3)
    for mine, theirs in zip(rows(source, ops, runtime_dir=server.runtime_dir), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_bad_line_is_named_and_everything_else_goes_on(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n\n5,6\n")
    columns = {"x": Scalar(), "y": Scalar("int64")}
    with (
        PrepClient(Csv(tmp_path / "a.csv", columns), [], batch_size=3, runtime_dir=server.runtime_dir) as client,
        pytest.raises(BadSampleError, match=r"a\.csv, line 3: the line has 1 cells and the header 2"),
    ):
        next(iter(client))
    with PrepClient(
        Csv(tmp_path / "a.csv", {"x": Scalar()}), [], batch_size=3, on_error="skip", runtime_dir=server.runtime_dir
    ) as client:
        assert [batch[0].tolist() for batch in client] == [[1.0, 5.0, 5.0]]


def test_two_jobs_train_on_a_table_of_256_columns(short_path: Path) -> None:
    x = torch.rand(512, 256, generator=torch.Generator().manual_seed(3))
    names = [f"x{number}" for number in range(255)]
    y = x[:, :255] @ torch.linspace(-1.0, 1.0, 255)
    pq.write_table(
        pa.table({name: x[:, n].numpy() for n, name in enumerate(names)} | {"y": y.numpy()}), short_path / "a"
    )
    source = Parquet(short_path / "a", columns=dict.fromkeys([*names, "y"], Scalar()))
    model, losses = torch.nn.Linear(255, 1), []
    where = {"batch_size": 64, "shuffle": True, "workers": 1, "runtime_dir": short_path / "none", "fields": "dict"}
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    with (
        PrepClient(source, [], job="one", **where) as one,  # type: ignore[arg-type]
        PrepClient(source, [], job="two", **where) as two,  # type: ignore[arg-type]
    ):
        for _ in range(10):
            for batch, same in zip(one, two, strict=True):
                assert all(torch.equal(batch[name], same[name]) for name in source.columns)
                inputs = torch.stack([batch[name] for name in names], 1)
                loss = (model(inputs)[:, 0] - batch["y"]).square().mean()
                losses.append(loss.item())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        assert one.stats()["sharing_factor"] > 1.5
    assert sum(losses[-8:]) < 0.7 * sum(losses[:8])


@pytest.mark.parametrize("name", ["masked", "packed, masked"])
def test_rows_of_text_are_the_same_after_kills(name: str, server: Server, tmp_path: Path) -> None:
    """Both workers hold tasks when they are stopped; one never goes on."""
    source, ops = tables(tmp_path)[name]
    expected = rows(source, ops, inline=True)
    wait_until(lambda: len(server.workers()) == 2, why=server.log)
    first, second = server.workers()
    with PrepClient(source, ops, batch_size=8, shuffle=True, seed=5, runtime_dir=server.runtime_dir) as client:
        for worker in (first, second):
            os.kill(worker, signal.SIGSTOP)
        try:
            len(client)
            server.status()  # answered after the tasks have been given out
            os.kill(first, signal.SIGKILL)
        finally:
            os.kill(second, signal.SIGCONT)
        found = [tuple(part.clone() for part in batch) for _ in range(2) for batch in client]
    for batch, same in zip(found, expected, strict=True):
        assert all(map(torch.equal, batch, same))


def test_a_batch_is_cut_to_its_longest_sample(server: Server, tmp_path: Path) -> None:
    """In batches of similar lengths little is left; with zero_copy it is a view of the ring."""
    source, ops = tables(tmp_path)["masked"]
    spec = {"batch_size": 8, "runtime_dir": server.runtime_dir, "fields": "dict"}
    whole = dict(spec, batch_size=40)
    with PrepClient(source, ops, **whole) as client:  # type: ignore[arg-type]
        (samples,) = client
    paddings: list[int] = []
    for extra in ({}, {"zero_copy": True}, {"order": "batch-shuffle-repeat", "shuffle": True, "seed": 1}):
        buckets = BucketByLength(source) if extra.get("order") else source
        seen, padding = [], 0
        is_sorted = buckets is not source
        with PrepClient(buckets, ops, **(spec | extra)) as client:  # type: ignore[arg-type]
            for batch in client:
                longest = int(batch["length"].max())
                assert {batch[name].shape for name in ("tokens", "mask", "labels")} == {(8, longest)}
                assert batch["mask"].sum(1).tolist() == batch["length"].tolist()
                padding += int((batch["mask"] == 0).sum())
                seen += batch["length"].tolist()
                if not is_sorted:
                    assert torch.equal(batch["tokens"], samples["tokens"][batch["index"], :longest])
            if is_sorted:
                epochs = [{frozenset(batch["index"].tolist()) for batch in client} for _ in range(2)]
                assert len(epochs[0]) == 5
                assert epochs[0] != epochs[1]
        assert sorted(seen) == sorted(samples["length"].tolist())
        paddings.append(padding)
    assert paddings[0] == paddings[1] > paddings[2]


def test_a_job_does_not_go_on_with_another_tokenizer(server: Server, tmp_path: Path) -> None:
    source, ops = tables(tmp_path)["text"]
    arguments = {"batch_size": 8, "runtime_dir": server.runtime_dir}
    with PrepClient(source, ops, **arguments) as client:  # type: ignore[arg-type]
        before = next(iter(client))[0].clone()
        state = client.state_dict()
    tokenizer(tmp_path / "a.json", WORDS[::-1])
    with PrepClient(source, ops, **arguments) as client:  # type: ignore[arg-type]
        assert not torch.equal(next(iter(client))[0], before)
    with PrepClient(source, ops, **arguments) as client:  # type: ignore[arg-type]
        client.load_state_dict(state)
        with pytest.raises(SourceChanged, match="a file of an op, or the code of a plug-in, has changed"):
            next(iter(client))


def test_a_tokenizer_that_cannot_be_used_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    (tmp_path / "bad.json").write_text("{}")
    for name, error, said in (
        ("none.json", SourceUnavailable, r"none\.json of an op cannot be used: there is no such file"),
        ("bad.json", InvalidSpec, r"bad\.json is no tokenizer of Hugging Face's tokenizers"),
    ):
        ops = [Tokenize(tmp_path / name), PadTokens(5)]
        with (
            pytest.raises(error, match=said),
            PrepClient(TextLines(tmp_path / "a.txt"), ops, batch_size=2, runtime_dir=server.runtime_dir) as client,
        ):
            next(iter(client))
