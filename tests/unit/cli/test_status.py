"""What ``prepserver status`` shows of a daemon's state."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from prepserver.cli.status import tables
from prepserver.cli.table import console

LONG = "a-sweep-over-learning-rates/with-a-long-name/run-0042"


def state(name: str = LONG) -> dict[str, Any]:
    """A busy daemon."""
    lane = {
        "id": 4,
        "uid": 0,
        "pipeline": "ab",
        "fields": ["image", "image_1", "label", "index"],
        "rows": 4096,
        "ring_bytes": 3 << 30,
        "jobs": 12,
    }
    worker = {"number": 0, "pid": 4_194_303, "state": "starting", "restarts": 3, "rows": 10**9, "bad_rows": 12_345,
              "busy_fraction": 0.987}  # fmt: skip
    job = {"id": 17, "name": name, "rank": 7, "world_size": 8, "num_shards": 1, "shard_index": 0, "pid": 9, "uid": 0,
           "stream": 3, "lane": 4, "batch_size": 256, "epoch": 89, "epoch_fraction": 0.41, "position": 10**8,
           "ready_rows": 2048, "batches": 10**6, "images_per_s": 12_345.6, "wait_s": 1e4, "wait_fraction": 0.23,
           "waits_for": "job 18", "sharing_factor": 2.0, "attached_s": 40_000.0}  # fmt: skip
    stream = {"id": 3, "samples": 1_281_167, "position": 10**8, "ready_upto": 10**8 + 2048, "waits_for": 2,
              "reads_everywhere": False, "apart": False,
              "rows_filled": 10**9, "rows_delivered": 2 * 10**9, "sharing_factor": 2.0,
              "lanes": [lane, lane]}  # fmt: skip
    return {
        "version": "1.2.3", "pid": 4_194_303, "runtime_dir": "/run/user/1000/prepserver", "state": "running",
        "uptime_s": 1e6, "rows_per_s": 12_345.6, "kernels": {"path": "native", "why": "AVX2"},
        "sandbox": {"mode": "off"},
        "memory": {"rings_bytes": 6 << 30, "budget_bytes": 100 << 30},
        "workers": [worker], "jobs": [job], "streams": [stream], "quarantined": {},
        "caches": [{"id": 3, "source": f"/data/{name}", "form": "decoded", "ops": ["Decode", "Resize"],
                    "place": "memory", "samples": 1_281_167, "rows": 1_281_167, "bytes": 300 << 30,
                    "hits": 10**9, "misses": 10**6, "hit_rate": 0.999, "damaged": 0, "idle_s": None}],
    }  # fmt: skip


def shown(found: dict[str, Any], width: int) -> list[str]:
    """The lines on a terminal of `width` columns."""
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    out.print(*tables(found), sep="\n")
    file = out.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [100, 200])
def test_each_row_is_one_line_that_fits_the_terminal(width: int) -> None:
    lines = shown(state(), width)
    assert max(map(len, lines)) <= width
    titles = [number for number, line in enumerate(lines) if line.strip() in ("workers", "jobs", "streams", "caches")]
    assert [after - title for title, after in zip(titles, [*titles[1:], len(lines)], strict=True)] == [3, 3, 3, 3]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_has_every_column(width: int) -> None:
    lines = shown(state(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for cell in ("4194303", "7/8", "89 (41 %)", "12346", "job 18", "2048", "100000000", "2.00", "stream 2", "damaged"):
        assert cell in text
    assert "lanes 4: 4096 rows of image" in text


def test_80_columns_have_room_for_all_but_a_long_name() -> None:
    text = "\n".join(shown(state(), 80))
    for cell in (LONG[:15], "7/8", "89 (41 %)", "12346", "23 %", "job 18", "99 %"):
        assert cell in text


def test_user_and_pid_of_a_job_are_shown_where_there_is_room() -> None:
    found = state("train")
    for pid, cell in ((4_194_000, "4194000"), (0, "-")):  # 0: in another PID namespace
        found["jobs"][0] |= {"pid": pid, "uid": 0}
        title, row = (line.split() for line in shown(found, 120) if line.startswith(("id  job", "17  train")))
        assert (title[2:4], row[2:4]) == (["user", "pid"], ["root", cell])
    assert not any("user  pid" in line or " root" in line for line in shown(state(), 80))  # the name is longer
    found["jobs"][0]["uid"] = 60_993  # nobody's
    assert any("train  60993" in line for line in shown(found, 120))


def test_a_name_is_shown_as_it_is_and_not_as_markup() -> None:
    for name in ("[/]", "[red]x[/red]", ":smile:"):
        assert any(name in line for line in shown(state(name), 200))


def test_what_an_older_daemon_does_not_say_is_a_dash() -> None:
    found = state()
    for name in ("epoch", "epoch_fraction", "images_per_s", "wait_fraction", "waits_for"):
        del found["jobs"][0][name]
    assert any(LONG in line and line.count(" - ") >= 4 for line in shown(found, 200))


def test_a_gpu_that_does_not_tell_its_memory_has_a_dash() -> None:
    gpu = {"index": 0, "name": "NVIDIA GB10", "utilisation_percent": 7, "memory_used_bytes": None}
    found = state() | {"gpus": [gpu | {"memory_total_bytes": None}]}
    assert any(line.split() == ["0", "NVIDIA", "GB10", "7", "%", "-"] for line in shown(found, 120))


def test_streams_of_slow_pipelines_are_named() -> None:
    found = state()
    found["streams"].append({**found["streams"][0], "id": 8, "apart": True})
    assert "streams 8 are kept apart: their pipelines are too slow to share" in "\n".join(shown(found, 200))


def test_in_a_pipe_lines_end_with_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(*tables(state()), sep="\n")
    lines = capsys.readouterr().out.splitlines()
    assert "workers" in lines
    assert [line for line in lines if line.endswith(" ")] == []
