"""What is shown of measured points: a table, a recommendation, settings that a daemon can be started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from prepserver.config import load_settings
from prepserver.pipeline.ops import CenterCrop
from prepserver.pipeline.sources import ImageFolder
from prepserver.tune.measure import Job
from prepserver.tune.points import Point
from prepserver.tune.show import advice, plain, settings, shown

JOB = Job(ImageFolder("/data/train"), (CenterCrop(8),), 64, step_s=0.1)
DECODED = Point(2, cache="decoded")
PACKED = Point(2, packed=True)
MEASURED = [
    (Point(1), 200.0),
    (Point(2), 380.0),
    (DECODED, 630.0),
    (PACKED, 500.0),
    (Point(2), 380.0),
    (DECODED, 610.0),
]


@pytest.mark.parametrize("width", [120, 80, 60])
def test_the_table_marks_the_choice_and_the_advice_follows(width: int) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(*shown(MEASURED, DECODED, JOB), sep="\n")
    text = captured.get()
    (line,) = [line for line in text.splitlines() if "recommended" in line]
    assert line.split()[:5] == ["2", "decoded", "-", "-", "630"]
    assert "prepserver start --workers 2" in text
    assert 'PrepClient(..., cache="decoded")' in text
    assert "630 samples/s (±2 %), all that a step of 100 ms can take" in " ".join(text.split())


@pytest.mark.parametrize(
    ("point", "step_s", "says"),
    [
        (Point(2, packed=True), 0.1, 'prepserver pack /data/train OUT, then use Packed("OUT")'),
        (Point(2), 0.1, "could take 640, so the loop waits 41 % of its time"),
        (Point(2), 0.0, "--step-ms"),
    ],
)
def test_the_advice_says_what_to_do_and_to_expect(point: Point, step_s: float, says: str) -> None:
    job = Job(JOB.source, JOB.ops, JOB.batch_size, step_s=step_s)
    assert says in "\n".join(advice(MEASURED, point, job))
    assert plain(MEASURED, point, job, {Point(9): "why"}, 1.0)["not_measured"][0]["why"] == "why"


def test_figures_of_a_busy_machine_say_so() -> None:
    assert "Uncertain: this configuration gave 300 to 400 samples/s" in "\n".join(
        advice([(Point(2), 400.0), (Point(2), 300.0)], Point(2), JOB)
    )
    assert "Uncertain" not in "\n".join(advice(MEASURED, DECODED, JOB))
    found = plain(MEASURED, DECODED, JOB, {}, 1.0)
    assert found["choice"]["measured_per_s"] == [630.0, 610.0]


def test_the_settings_start_a_daemon(tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    path.write_text(settings(Point(3, 128, "encoded"), JOB, [(Point(3, 128, "encoded"), 100.0)]))
    assert load_settings(path, {}).workers == 3
    assert '# In the script: PrepClient(..., cache="encoded", prefetch=128)' in path.read_text()


def test_a_strangers_path_is_neither_setting_nor_command(tmp_path: Path) -> None:
    """`tune --job` takes the source from the log of any user's job."""
    job, point = Job(ImageFolder("/data/$(evil)\nworkers = 64"), JOB.ops, 8), Point(3, packed=True)
    (tmp_path / "best.toml").write_text(settings(point, job, [(point, 100.0)]))
    assert load_settings(tmp_path / "best.toml", {}).workers == 3
    assert r"prepserver pack '/data/$(evil)\nworkers = 64' OUT" in "\n".join(advice([(point, 100.0)], point, job))
