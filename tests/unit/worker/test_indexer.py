from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

from prepserver.pipeline.sources import ImageFolder
from prepserver.protocol.work import FROM_INDEXER, BuildIndex, Indexed, IndexFailed, Indexing
from prepserver.worker import indexer
from prepserver.worker.channel import pair, send
from tests.support.tiny_images import index_of, photo_tree, said_before_the_end


def run(*messages: Any) -> tuple[int, list[Any]]:
    """The exit status of an indexer that is told `messages`, and what it said."""
    ours, theirs = pair()
    for message in messages:
        send(ours, message)
    ours.shutdown(socket.SHUT_WR)
    status = indexer.run(theirs)
    theirs.close()
    said = said_before_the_end(ours, FROM_INDEXER)
    ours.close()
    return status, said


def test_an_indexer_tells_how_far_it_is_and_where_the_index_lies(tmp_path: Path) -> None:
    spec = photo_tree(tmp_path / "data", 6)
    status, said = run(BuildIndex(spec.to_wire(), str(tmp_path / "cache")))
    info = index_of(spec, tmp_path / "other")
    assert status == 0
    assert said[-2] == Indexing(6)
    assert isinstance(said[-1], Indexed)
    assert Path(said[-1].path).is_file()
    assert (said[-1].samples, said[-1].num_classes) == (6, 2)
    assert (said[-1].digest, said[-1].content_digest) == (info.digest, info.content_digest)


def test_a_dataset_that_is_not_there_is_told_in_words(tmp_path: Path) -> None:
    status, said = run(BuildIndex(ImageFolder(str(tmp_path / "none")).to_wire(), str(tmp_path / "cache")))
    assert status == 0
    assert [type(m) for m in said] == [IndexFailed]
    assert "does not exist" in said[0].reason


def test_a_source_that_is_none_is_told_in_words(tmp_path: Path) -> None:
    _, said = run(BuildIndex({"source": "Nonsense"}, str(tmp_path / "cache")))
    assert [type(m) for m in said] == [IndexFailed]
    assert "source" in said[0].reason


def test_files_of_ops_follow_the_rules_of_the_source(tmp_path: Path) -> None:
    spec = photo_tree(tmp_path / "data", 6)
    for folder in ("data/in", "out"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.json").write_text(folder)
    inside, outside = (f"{tmp_path}/{folder}/a.json" for folder in ("data/in", "out"))

    def answer(*files: str, roots_only: bool = True) -> Any:
        roots = [f"{tmp_path}/data"]
        return run(BuildIndex(spec.to_wire(), str(tmp_path / "cache"), roots, roots_only, list(files)))[1][-1]

    (tmp_path / "data" / "in" / "a.jpg").touch()
    found = answer(inside)
    assert found.files == [hashlib.sha256(b"data/in").hexdigest()]
    assert set(found.places) >= {f"{tmp_path}/data/in", f"{tmp_path}/data"}
    refused = answer(inside, outside)
    assert isinstance(refused, IndexFailed)
    assert f"{outside} does not lie below the source roots" in refused.reason
    trusted = answer(inside, outside, roots_only=False)
    assert (len(trusted.files), trusted.roots) == (2, [])
    assert f"{tmp_path}/out" in trusted.places
    assert "none.json of an op cannot be used" in answer(f"{tmp_path}/data/none.json").reason


def test_hanging_up_cancels_the_scan_and_leaves_no_file(tmp_path: Path) -> None:
    spec = photo_tree(tmp_path / "data", 6)
    ours, theirs = pair()
    send(ours, BuildIndex(spec.to_wire(), str(tmp_path / "cache")))
    ours.close()
    assert indexer.run(theirs) == indexer.EXIT_CANCELLED
    theirs.close()
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_a_line_that_closes_before_the_job_ends_the_indexer() -> None:
    assert run() == (indexer.EXIT_CANCELLED, [])
