"""A file in bench/cases is a case: it is listed, run by its name, and has its section in RESULTS.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.harness.case import Case
from bench.harness.command import load, main, names, question
from bench.harness.fingerprint import ROOT, fingerprint


def figures(busy_cores: float = 0.05, **more: Any) -> str:
    return json.dumps({"machine": {**fingerprint(), "busy_before_cores": busy_cores}, "took_s": 7.0, **more})


def cell(peer: str, rate: float) -> dict[str, Any]:
    return {"peer": peer, "steady_per_s": rate, "others_cores": 0.0}


@pytest.mark.parametrize("name", names())
def test_a_case_asks_a_question_and_can_be_loaded(name: str) -> None:
    assert question(name).endswith("?")
    assert isinstance(load(name), Case)


def test_the_list_has_every_case_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name:16} {question(name)}" for name in names()]


def test_listing_the_cases_imports_neither_cases_nor_peers() -> None:
    code = "import sys; from bench.harness.command import main; main(['--list']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "prepserver", "prepclient")}
    assert not {name for name in loaded if name.startswith("bench.cases.")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "nonsense"], "no such case: nonsense"),
        (["compare", "rows", "--json", "x.json"], "one case"),
        (["compare", "--against", "HEAD"], "--against"),
        ([], "name a case"),
    ],
)
def test_a_wrong_command_line_is_refused_before_measuring(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_figures_of_an_earlier_run_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [[cell("prepserver", 2000.0), cell("grain", 1000.0)]]
    path = tmp_path / "peers.json"
    path.write_text(figures(photos="400 photos", workers=2, left_out={}, versions={}, rounds=rounds))
    assert main(["peers", "--show", str(path), "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "400 photos; 2 workers; 1 rounds in 7 s." in said
    assert "| Grain | 1 | no | 1000 | 0.50 |" in said
    assert "Ahead of prepserver with 1 job(s) in images/s: nobody." in said


def test_the_report_has_a_section_for_each_measured_case(tmp_path: Path) -> None:
    rounds = [[{**cell("prepserver", 2000.0), "others_cores": 0.7}]]
    (tmp_path / "peers.json").write_text(figures(workers=2, left_out={}, versions={"grain": "1"}, rounds=rounds))
    (tmp_path / "joining.json").write_text(figures(0.7, workers=2, samples=8192, joins=[]))
    (tmp_path / "versus.json").write_text(figures(found={}))  # not a part of it
    assert main(["results", "--figures", str(tmp_path), "--into", str(tmp_path)]) == 0
    report = (tmp_path / "RESULTS.md").read_text()
    assert re.findall("^## (.*)$", report, re.MULTILINE) == [load("joining").title, load("peers").title]
    assert "**Disturbed: in 1 of 1 windows" in report
    assert report.count("**0.7 cores were busy before the run: provisional.**") == 1
    assert "- Versions: grain 1.\n" in report
    assert "![" in report
    assert (tmp_path / "peers.svg").exists()
    (tmp_path / "peers.json").unlink()
    (tmp_path / "joining.json").write_text(figures(workers=2, samples=8192, joins=[]))
    assert main(["results", "--figures", str(tmp_path), "--into", str(tmp_path)]) == 0
    assert "run: provisional" not in (tmp_path / "RESULTS.md").read_text()  # measured again
    assert (tmp_path / "RESULTS.md").read_text().endswith(report[report.index(f"## {load('peers').title}") :])


def test_the_kept_report_is_that_of_these_cases() -> None:
    sections = re.findall("^## (.*)$", (ROOT / "bench" / "RESULTS.md").read_text(), re.MULTILINE)
    titles = [load(name).title for name in names()]
    assert sections == [title for title in titles if title in sections]
