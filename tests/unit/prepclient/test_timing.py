"""Where a loop's time went: what is counted, the table at the end, the bar, and late copies on a device."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from prepclient import CenterCrop, InvalidSpec, Joining, PrepClient, Sharding, SyntheticImages
from prepclient.delivery import Delivery
from prepclient.inline import InlineFeed
from prepclient.session import Totals
from prepclient.timing import Parts, render, spoken
from prepserver.inline import InlineMaker
from tests.support.device_client import DeviceClient
from tests.support.fake_device import FakeDevice, FakeEvent
from tests.support.traces import message, packets, spans

SOURCE = SyntheticImages(12, size=(20, 20))
MS = 1_000_000


def inline(**options: Any) -> PrepClient:
    return PrepClient(SOURCE, [CenterCrop(8)], batch_size=4, inline=True, **options)


def test_all_time_is_counted_once() -> None:
    with inline(dtype=torch.float32) as train:
        assert train.stats()["rest_s"] == train.stats()["wait_s"] == 0.0
        since_s = time.monotonic()
        for _ in range(2):
            for _ in train:
                time.sleep(0.01)
            time.sleep(0.05)
        stats, whole_s = train.stats(), time.monotonic() - since_s
        assert stats["own_s"] >= 4 * 0.01  # after the last batch of an epoch none is asked for: 2 of 3 count
        assert stats["rest_s"] >= 2 * 0.05
        assert stats["wait_s"] > 0
        assert stats["copy_s"] > 0
        assert sum(stats[name] for name in ("wait_s", "copy_s", "own_s", "rest_s")) <= whole_s
        assert stats["verdict"]["kind"] == "not enough data"


def test_a_wait_for_one_client_is_no_computing_of_another() -> None:
    """In a loop that reads several side by side, or each would call the loop busy with itself."""
    large = PrepClient(SyntheticImages(12, size=(400, 400)), [CenterCrop(300)], batch_size=4, inline=True)
    with inline() as train, large:
        for _ in zip(train, large, strict=False):
            pass
        one, other = train.stats(), large.stats()
    assert other["batches"] == 3
    assert one["rest_s"] >= other["wait_s"]


@pytest.mark.parametrize(("start", "seed", "warns"), [(12, 0, True), (0, 0, False), (12, 1, False)])
def test_clients_read_side_by_side_begin_at_one_place(
    start: int, seed: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a warning says that their batches hold different samples, once."""
    with inline(shuffle=True) as one, inline(shuffle=True, seed=seed, joining=Joining(start=start)) as other:
        for _ in range(3):
            for first, second in zip(one, other, strict=True):
                same = torch.equal(first[0], second[0])
                assert same == (start == seed == 0)
    said = [record for record in caplog.records if "side by side" in record.getMessage()]
    assert len(said) == warns


def test_loops_that_follow_one_another_are_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    with inline(shuffle=True) as one, inline(shuffle=True, joining=Joining(start=12)) as other:
        for _ in range(8):
            assert [len(list(each)) for each in (one, other)] == [3, 3]
    assert not [record for record in caplog.records if "side by side" in record.getMessage()]


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_of_a_job_logs_the_verdict(
    rank: int, counts: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in a loop that counts batches, as Lightning's and the Trainer's of transformers: it never asks for more."""
    monkeypatch.setattr("prepclient.loop._JUDGE_AFTER_NS", 0)
    verdict = {
        "kind": "data-bound", "causes": ["read"], "verdict": "data-bound (read)", "why": "slow", "next": "pack",
        "is_fine": False,
    }  # fmt: skip
    monkeypatch.setattr(InlineFeed, "about_job", lambda *_: {"verdict": verdict})
    with caplog.at_level("INFO", "prepclient"), inline(job="a", sharding=Sharding(rank=rank, world_size=2)) as train:
        for _ in range(2):
            batches = iter(train)
            taken = [next(batches) for _ in range(len(train))] if counts else list(batches)
            assert taken
    said = [record.getMessage() for record in caplog.records if "Verdict" in record.getMessage()]
    assert said == ["Verdict: data-bound (read). Why: slow. Next: pack"] * (rank == 0)


def test_rows_made_inline_are_the_limit_of_a_quick_loop() -> None:
    with inline() as train:
        assert train.stats()["verdict"] is None  # not attached
        len(train)
        assert train._attachment.feed is not None
        found = train._attachment.feed.about_job(Totals(100, 400, 0, 9000 * MS, 10 * MS, 1000 * MS))["verdict"]
        assert (found["kind"], found["causes"]) == ("data-bound", ["inline"])
        assert "workers=N" in found["next"]
        assert "Verdict: not enough data" in train.stats(table=True)


def test_the_table_has_steps_and_per_cent() -> None:
    totals = Totals(10, 80, 0, 1000 * MS, 500 * MS, 2000 * MS)
    verdict = {"verdict": "data-bound (read)", "why": "slow", "next": "pack"}
    lines = [line.split() for line in render(totals, Parts.of(totals, 4000 * MS), verdict).splitlines()]
    assert lines[0][:4] == ["10", "steps,", "80", "samples,"]
    assert lines[2:7] == [
        ["loading", "1.00", "100.00", "25.0"],
        ["copying", "0.50", "50.00", "12.5"],
        ["computing", "2.00", "200.00", "50.0"],
        ["rest", "0.50", "50.00", "12.5"],
        ["all", "4.00", "400.00", "100.0"],
    ]
    assert lines[7:] == [["Verdict:", "data-bound", "(read)"], ["Why:", "slow"], ["Next:", "pack"]]
    assert sum(Parts.of(totals, 4000 * MS)) == 4.0
    assert "all" in render(Totals(), Parts.of(Totals(), 0), None)


def test_the_first_step_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a compiler."""
    judged: list[tuple[float, ...]] = []
    with inline() as train:
        batches = iter(train)
        next(batches)
        first = train.stats()
        monkeypatch.setattr(InlineMaker, "verdict", staticmethod(lambda *of: judged.append(of)))
        for _ in range(2):
            next(batches)
        whole = train.stats()
    expected = [whole[name] - first[name] for name in ("batches", "images", "bad_samples", "wait_s", "copy_s", "own_s")]
    assert judged == [pytest.approx(expected)]
    assert expected[:2] == [2, 8]


def test_a_fine_verdict_has_no_next_line() -> None:
    assert spoken(None) == []
    assert spoken({"verdict": "healthy", "why": "ready", "next": ""}) == ["Verdict: healthy", "Why: ready"]


def test_progress_gives_all_batches_and_shows_totals(capfd: pytest.CaptureFixture[str]) -> None:
    with inline() as train:
        assert sum(len(labels) for _, labels in train.progress(3)) == 36
        assert train.epoch == 3
        err = capfd.readouterr().err
        assert "epoch 3/3" in err
        assert "9/9" in err
        next(iter(train))
        train.load_state_dict(train.state_dict())
        assert sum(len(labels) for _, labels in train.progress(2)) == 20
        assert "5/5" in capfd.readouterr().err  # the rest of an epoch, and a whole one
        for wrong in (0, "many"):
            with pytest.raises(InvalidSpec, match="epochs"):
                train.progress(wrong)  # type: ignore[arg-type]


def test_a_process_is_told_once_that_inline_is_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by each client: a notebook's cell makes one each time it runs."""
    monkeypatch.setattr("prepclient.loop._JUDGE_AFTER_NS", 0)
    monkeypatch.setattr("prepclient.loop._inline_is_slow", threading.Event())
    verdict = {"kind": "data-bound", "causes": ["inline"], "verdict": "data-bound (inline)", "is_fine": False}
    monkeypatch.setattr(InlineFeed, "about_job", lambda *_: {"verdict": {**verdict, "why": "slow", "next": "workers"}})
    for _ in range(3):
        with inline() as train:
            list(train)
            list(train)
    assert [record.getMessage().split(".")[0] for record in caplog.records] == ["Verdict: data-bound (inline)"]


def test_the_bar_of_a_notebook_leaves_stdout_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What rich puts in its place there recurses when a loop prints a part of a line, and stays after a `break`."""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)  # as rich recognizes a notebook
    out, err = sys.stdout, sys.stderr
    with inline() as train:
        bar = train.progress(1)
        for _ in bar:
            assert (sys.stdout, sys.stderr) == (out, err)
            sys.stdout.write(".")
            sys.stdout.flush()
            break
        assert (sys.stdout, sys.stderr) == (out, err)
        assert len(list(bar)) == 2
    found = capfd.readouterr()
    assert found.out == "."
    assert "epoch 1/1" in found.err
    assert "3/3" in found.err


def test_rings_in_the_traceback_of_a_cell_are_freed() -> None:
    """IPython keeps the traceback of an interrupted cell in a cycle. Its ring would count until Python's next gc."""

    class Cell:
        traceback: Any = None

    rings: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        with inline() as train:
            for epoch in range(1, 4):
                cell = Cell()
                try:
                    for _ in train:
                        rings.append(weakref.ref(train._attachment.feed.rows))  # type: ignore[union-attr]
                        raise KeyboardInterrupt
                except KeyboardInterrupt as error:
                    feed = train._attachment.feed
                    cell.traceback = error, cell, feed
                    del feed
                train.set_epoch(epoch)  # attaches again
                del cell
            assert [ring() is None for ring in rings] == [True, True, False]  # the last one had no attachment after it
    finally:
        gc.enable()


def test_a_timeline_has_so_many_steps_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    with inline() as train:
        train.timeline(path, steps=4)
        for _ in train:
            assert not path.exists()
        list(train)
        names = [name for name, *_ in spans(path.read_bytes())]
        assert names.count("next") == names.count("copying") == 4
        assert names.count("computing") == 2  # not between epochs, and not after the last one
        with pytest.raises(InvalidSpec, match="steps"):
            train.timeline(path, steps=0)
        with pytest.raises(InvalidSpec, match="path = 5: a path"):
            train.timeline(5)  # type: ignore[arg-type]
        train.timeline(tmp_path / "no" / "folder.pftrace", steps=1)
        assert len(list(train)) == 3  # a file that cannot be written ends no training
        path.unlink()
        train.timeline(path)
        next(iter(train))
        train.timeline(tmp_path / "another.pftrace")  # the first one is written with what it has
        assert [name for name, *_ in spans(path.read_bytes())].count("next") == 1
    assert not (tmp_path / "another.pftrace").exists()  # nothing was recorded


def test_copies_to_a_device_have_tracks_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    device = FakeDevice()
    with DeviceClient(SOURCE, [CenterCrop(8)], batch_size=4, inline=True, fake=device) as train:
        train.timeline(path, steps=6)
        for _ in range(2):
            for _ in train:
                device.finish_all()
        found = spans(path.read_bytes())
    copies, nexts = ([span for span in found if span[0] == name] for name in ("copying", "next"))
    assert len(nexts) == 6
    assert len(copies) >= 4  # up to two batches are still ahead
    assert all(began < ended for _, began, ended in copies)
    names = [message(each).get(2) for packet in packets(path.read_bytes()) for each in packet.get(60, ())]
    assert names.count([b"copies"]) > 2  # as many as may be under way


@pytest.mark.parametrize(
    ("asked_ms", "copied_ms", "waited_ms", "late_ms"), [(10, 16, 0, 6), (10, 16, 4, 2), (10, 16, 9, 0), (10, 3, 0, 0)]
)
def test_only_copies_that_hold_up_the_device_are_late(
    asked_ms: int, copied_ms: int, waited_ms: int, late_ms: int
) -> None:
    """From the end of the earlier work to the end of the copy, less the time for which rows were missing."""
    device = FakeDevice()
    delivery: Delivery[FakeEvent] = Delivery(device, 1)
    delivery.ask()
    delivery.submit(1, lambda _slot: None)
    delivery.take(waited_ms * MS)
    assert delivery.late_ns() == 0  # not known yet
    ends = [("consumer", asked_ms), ("copies", copied_ms)]
    for stream, end_ms in sorted(ends, key=lambda each: each[1]):
        device.clock_ns = lambda end_ms=end_ms: end_ms * MS  # type: ignore[misc]
        device.run(stream)  # type: ignore[arg-type]
    assert delivery.late_ns() == late_ms * MS
    assert delivery.late_ns() == 0  # counted once


def test_an_epoch_of_another_attachment_is_not_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its siblings may not be back yet, and would be called absent."""
    ended: list[int] = []
    monkeypatch.setattr("prepclient.loop.Loop._warn_of_absent_ranks", lambda loop: ended.append(loop.totals.batches))
    with inline(job="a") as train:
        for close in (False, True, False):
            batches = iter(train)
            for _ in range(len(train)):  # as Lightning does: it does not ask for one more
                next(batches)
            if close:
                train.close()
    assert ended == [len(train)]
