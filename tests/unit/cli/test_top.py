"""What ``prepserver top`` shows of a daemon's state, and what its keys do."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from prepserver.cli.top import View, screen
from prepserver.telemetry.finding import Verdict
from tests.unit.cli.test_status import state

SLOW = Verdict(
    "data-bound", ("op blur", "workers"), "the loop waits 61 % of its time for rows", "start 3 more workers", 0.61,
    ("copy-bound (copy)",),
)  # fmt: skip
FINE = Verdict("healthy", why="rows were ready")


def busy(jobs: int = 3, *, is_slow: bool = True) -> dict[str, Any]:
    found = state()
    (job,) = found["jobs"]
    found["jobs"] = [
        job | {"id": n, "name": f"run-{n:03}" if n else job["name"], "wait_fraction": n / jobs, "lag_rows": 10 * n,
               "ring_fill": 0.5, "verdict": (SLOW if is_slow and n == 1 else FINE).to_plain()}
        for n in range(jobs)
    ]  # fmt: skip
    found["memory"] |= {"caches_bytes": 3 << 20, "caches_budget_bytes": 4 << 20}
    found["caches"] = [
        {"id": n, "source": "/data", "form": "encoded", "ops": [], "place": place, "samples": 9, "rows": 3,
         "bytes": 3 << 20, "hits": 6, "misses": 4, "hit_rate": 0.6, "damaged": 0}
        for n, place in enumerate(("memory", "/nvme"))
    ]  # fmt: skip
    found["cores"] = {"usable": 16.0, "busy": 12.3}
    found["streams"][0] |= {"rows_per_s": 100.0, "stages_ms_per_sample": {"read": 1.0, "decode": 6.0, "op blur": 3.0}}
    found["gpus"] = [
        {"index": 0, "name": "NVIDIA H200", "utilisation_percent": 97, "memory_used_bytes": 1 << 36,
         "memory_total_bytes": 1 << 37, "power_w": 612.4, "pcie_bytes_per_s": 3 << 30, "pids": [9, 77]},
        {"index": 1, "name": "MIG 1g", "utilisation_percent": None, "memory_used_bytes": 1 << 30,
         "memory_total_bytes": 1 << 33, "power_w": None, "pcie_bytes_per_s": None, "pids": []},
    ]  # fmt: skip
    return found


def shown(found: dict[str, Any], width: int, height: int | None = None, view: View = View(), **other: Any) -> str:  # noqa: B008 - frozen
    out = Console(file=io.StringIO(), width=width, force_terminal=True, **({"color_system": None} | other))
    out.print(screen(found, width, height, view))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("jobs", [0, 1, 3, 200])
def test_the_screen_fits_every_terminal(width: int, jobs: int) -> None:
    lines = shown(busy(jobs), width, 36).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 36
    text = "\n".join(lines)
    assert "GPU 0 " in text
    assert ("verdict" in text) == (jobs > 0)
    assert ("no jobs" in text) == (jobs == 0)
    assert ("more" in text.partition("job ")[2]) >= (jobs == 200)
    if jobs > 1:
        assert "op blur" in text
        assert "start 3 more workers" in text


def test_all_that_is_known_is_shown_on_a_wide_terminal() -> None:
    text = shown(busy(), 160)
    for cell in ("99 % of 1 busy", "decode 60 %", "12.3 of 16 busy", "97 %", "612 W", "3.0 GiB/s", "run-001", "7/8",
                 "root", "33 %", "12,346", "2.0x", "Also: copy-bound (copy)", "MIG 1g", "pid 77",
                 "3.0 MiB of 4.0 MiB, hits 60 %"):  # fmt: skip
        assert cell in text


def test_a_gpu_that_does_not_tell_its_memory_is_shown() -> None:
    found = busy()
    found["gpus"][1] |= {"name": "NVIDIA GB10", "memory_used_bytes": None, "memory_total_bytes": None}
    assert "NVIDIA GB10  -" in shown(found, 160)


def test_a_healthy_machine_is_told_so() -> None:
    found = busy(is_slow=False)
    assert "Only their own training steps limit the jobs" in shown(found, 80)
    found["jobs"][1]["verdict"] = {"verdict": "not enough data", "kind": "not enough data", "is_fine": True}
    assert "training steps" not in shown(found, 80)


def test_an_older_daemons_state_is_shown_as_far_as_it_goes() -> None:
    assert "a-sweep" in shown(state(), 80)


@pytest.mark.parametrize(
    ("sort", "first"), [("wait", "run-002"), ("samples/s", "a-sweep"), ("lag", "run-002"), ("job", "a-sweep")]
)
def test_jobs_are_sorted_by_the_chosen_column(sort: str, first: str) -> None:
    lines = shown(busy(is_slow=False), 120, view=View(sort)).splitlines()
    heads = next(number for number, line in enumerate(lines) if line.startswith("job "))
    assert lines[heads + 1].startswith(first)


def test_colours_are_left_out_on_request() -> None:
    assert "\x1b[3" in shown(busy(), 120, color_system="truecolor")
    assert "\x1b[3" not in shown(busy(), 120, no_color=True, color_system="truecolor")


def test_keys_sort_freeze_and_quit() -> None:
    view = View()
    seen = [view.sort]
    for _ in range(4):
        after = view.after("s")
        assert after is not None
        view = after
        seen.append(view.sort)
    assert seen == ["wait", "samples/s", "lag", "job", "wait"]
    frozen = view.after("f")
    assert frozen is not None
    assert frozen.is_frozen
    assert "FROZEN" in shown(busy(), 80, view=frozen)
    assert frozen.after(" ") == view.after("x") == view
    assert [view.after(key) for key in ("q", "\x03")] == [None, None]


def test_a_daemon_that_is_gone_is_named() -> None:
    assert "no daemon runs in /run/x; retrying" in shown(busy(), 120, view=View(gone="no daemon runs in /run/x"))
