"""The page of a run: it needs nothing else, shows what was counted, and can be read again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from prepserver.cli import exits, main
from prepserver.cli.run_page import data_of, page
from prepserver.telemetry.finding import Verdict
from prepserver.telemetry.history import History, Slice, Track, figures

HOSTILE = '</script><script>alert("x")</script><img src=https://evil.example/>'
SLOW = Verdict("data-bound", ("op blur",), "the loop waits 61 % of its time", "start 3 more workers", 0.6, ("copy",))


def run(images: float = 100, seconds: int = 500, job: str = "resnet", batch_size: int = 8) -> History:
    ops = [{"op": "Decode", "mode": "RGB"}, {"op": "RandomApply", "ops": [{"op": "Blur", "k": 3}]}]
    source = {"source": "ImageFolder", "root": "/data"}
    reads = {"source": source, "n": 1000, "seed": 3, "batch_size": batch_size, "pipeline": ops}
    slices = []
    for k in range(seconds):
        sums = {"images": images, "wait": 0.5, "copy": 0.1, "own": 0.4, "busy": 0.9, "workers": 1, "ring": 0.2,
                "ranks": 1}  # fmt: skip
        if k % 10 == 0:
            sums |= {"stage decode": 6.0, "stage read": 4.0, f"verdict {SLOW.title}": 10.0}
        slices.append(Slice(1.7e9 + k + (100 if k > 250 else 0), 1.0, sums))
    train = Track(reads, slices, {SLOW.title: SLOW.to_plain()})
    other = Track({**reads, "n": 50}, [Slice(1.7e9, 1.0, {"images": 3, "own": 1.0})])
    return History(
        {"job": job, "since": "2026-01-01", "machine": {"host": "box", "cores": 8.0}, "settings": {"workers": 7},
         "versions": {"torch": "2"}},
        [1], {"b": other, "a": train, "c": Track(reads)},
    )  # fmt: skip


def test_the_page_says_what_was_counted() -> None:
    text = page(run())
    for said in ("data-bound (op blur)", "the loop waits 61 %", "start 3 more workers", "Also: copy", "8 min 20 s",
                 "50,000", "box, 8 cores, workers: 7", "RandomApply(ops=[Blur(k=3)])", "ImageFolder(root=/data)",
                 "The job also read ImageFolder of 50 samples", "prefers-color-scheme:dark"):  # fmt: skip
        assert said in text
    svgs = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(svgs) == 5 + 2
    charts = [ElementTree.fromstring(svg) for svg in svgs]
    assert all(
        float(n) >= 0 for svg in svgs for d in re.findall(r' d="([^"]*)"', svg) for n in re.findall(r"[-\d.]+", d)
    )
    hints = [each.text or "" for each in charts[1].iter("title")]
    assert "loading: 50 %\ncopying: 10 %\ncomputing: 40 %" in hints[3]
    assert "GPU" not in re.sub(r"<script.*", "", text, flags=re.DOTALL)  # of which nothing is known


def test_the_page_fetches_nothing_whatever_a_job_is_called() -> None:
    text = page(run(job=HOSTILE))
    assert "default-src 'none'" in text
    assert "<script>" not in text
    assert text.count("<script") == text.count("</script") == 1
    assert re.findall(r'<(?:img|link|iframe|script src|use|image)\b|url\(|@import|\bhref=|\bsrc="', text) == []
    assert data_of(text).run["job"] == HOSTILE


def test_a_page_can_be_read_again() -> None:
    whole = run(seconds=5000)
    found = data_of(page(whole))
    assert len(found.by_images[0].slices) <= 730
    assert figures(found.by_images[0].slices) == pytest.approx(figures(whole.by_images[0].slices))
    assert found.by_images[0].verdicts == whole.tracks["a"].verdicts
    with pytest.raises(ValueError, match="not a page"):
        data_of("<html></html>")


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.html", tmp_path / "b.html"
    a.write_text(page(run()))
    b.write_text(page(run(images=150, batch_size=16)))
    assert main(["compare", str(a), str(b)]) == exits.OK
    text = capsys.readouterr().out
    for line in (r"samples/s +100 +150 +\+50 %", r"loading +50 % +50 % +\+0 points", r"decode +6\.000 +4\.000 +-33 %",
                 r"batch_size +8 +16", r"A +data-bound \(op blur\)"):  # fmt: skip
        assert re.search(line, text), (line, text)
    assert "seed" not in text
    assert main(["compare", str(a), str(b), "--json"]) == exits.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["differs"] == {"batch_size": ["8", "16"]}
    a.write_text("other")
    for names in ((a, b), (b, tmp_path / "none.html")):
        assert main(["compare", *map(str, names)]) == exits.FAILED
    assert "not a page" in capsys.readouterr().err


@pytest.mark.parametrize(
    "data", ["7", "[" * 100_000, '[{"run": {"settings": [1]}}, {"track": "a", "reads": {"pipeline": 7}}, %s]']
)
def test_a_damaged_page_is_said_to_be_one(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, damaged = tmp_path / "a.html", tmp_path / "b.html"
    whole.write_text(page(run(seconds=20)))
    slices = '{"track": "a", "at": 1, "for": 1, "sums": {"images": 5}}'
    damaged.write_text(f'<script type="application/json" id="prepserver-run">{data.replace("%s", slices)}</script>')
    assert main(["compare", str(whole), str(damaged)]) == exits.FAILED
    assert f"{damaged}: this page of `prepserver report` is damaged" in capsys.readouterr().err


def test_only_what_differs_in_sources_and_ops_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(seconds=20), run(seconds=20)
    crop = {"op": "Crop", "size": [224, 224], "antialias": True}
    a.tracks["a"].reads["pipeline"] = [{"op": "Decode", "mode": "RGB"}, {"op": "Flip", "p": 0.5}, crop]
    b.tracks["a"].reads["pipeline"] = [{"op": "Decode", "mode": "RGB"}, {**crop, "size": [192, 192]}, {"views": 2}]
    b.tracks["a"].reads["source"] = {"source": "ImageFolder", "root": "/other"}
    for name, history in (("a", a), ("b", b)):
        (tmp_path / name).with_suffix(".html").write_text(page(history))
    assert main(["compare", str(tmp_path / "a.html"), str(tmp_path / "b.html")]) == exits.OK
    _, text = capsys.readouterr().out.split("what differs")
    assert [" ".join(line.split()) for line in text.splitlines()[2:]] == [
        "source ImageFolder(root=/data) ImageFolder(root=/other)",
        "pipeline Flip(p=0.5) -",
        "pipeline Crop(size=[224, 224]) Crop(size=[192, 192])",
        "pipeline - {'views': 2}",
    ]


def test_a_page_of_a_stranger_does_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(seconds=20), run(seconds=20)
    b.tracks["a"].reads["source"] = {"source": "ImageFolder", "root": "/data/\x1b]0;evil\x07\nB"}
    for name, history in (("a", a), ("b", b)):
        (tmp_path / name).with_suffix(".html").write_text(page(history))
    assert main(["compare", str(tmp_path / "a.html"), str(tmp_path / "b.html")]) == exits.OK
    text = capsys.readouterr().out
    assert r"/data/\x1b]0;evil\x07\nB" in text
    assert "\x1b" not in text
