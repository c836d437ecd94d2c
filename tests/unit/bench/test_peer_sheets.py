"""Tables, sentences and bars, from figures that are made up."""

from __future__ import annotations

import xml.etree.ElementTree as Tree
from typing import Any

import pytest

from bench.harness.bars import Bar, bars
from bench.harness.rounds import ratios
from bench.peers.sheets import ahead, chart, sheets

SVG = "{http://www.w3.org/2000/svg}"


def cell(peer: str, rate: float, **more: float) -> dict[str, Any]:
    figures = {"cpu_s_per_1000": 1.0, "pss_mib": 500.0, "import_s": 1.0, "first_batch_s": 0.2, "gap_ms": 1.0}
    figures |= {"next_p50_ms": 30.0, "next_p99_ms": 50.0, "kb_per_image": 110.0, "others_cores": 0.0}
    return {"peer": peer, "steady_per_s": rate, **figures, **more}


def result(*rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {"workers": 2, "rounds": list(rounds), "left_out": {}, "versions": {}, "photos": "400 photos"}


def targets(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Text -> (found, reached)."""
    return {row[0]: (row[1], row[3]) for row in sheets(found)[-1].rows}


def test_ratios_are_taken_within_rounds_of_both() -> None:
    """A round in which only one of the two took part gives no ratio."""
    found = result(
        [cell("prepserver", 2000), cell("grain", 1000)], [cell("prepserver", 900)],
        [cell("prepserver", 1000), cell("grain", 250)],
    )  # fmt: skip
    assert ratios(found["rounds"], "steady_per_s", {"peer": "prepserver"}, {"peer": "grain"}) == [2.0, 4.0]


def test_targets_are_reached_missed_or_undecided() -> None:
    own = cell("prepserver", 2000, server_own_mib=201.0, pss_shmem_mib=70.0)
    found = targets(result([own, cell("grain", 1500), cell("spdl", 1500), cell("dali", 1000, others_cores=0.5)]))
    assert found["prepserver / Grain"] == ("1.33", "yes")
    assert found["prepserver / SPDL"] == ("1.33", "no")
    assert found["prepserver / DALI"] == ("2.00", "undecided: disturbed")
    assert found["MiB of daemon and workers, without the ring"] == ("201", "yes")
    assert "prepserver / tf.data" not in found


def test_the_leader_of_each_column_is_named_with_its_pixels() -> None:
    """The name comes with what that contender does to pixels."""
    said = ahead(result([cell("prepserver", 2000), cell("tf_data", 2100, pss_mib=450.0), cell("dali", 1000)]))
    assert "Ahead of prepserver with 1 job(s) in images/s: tf.data (2100 to 2000; antialiased: no)." in said
    assert "Ahead of prepserver with 1 job(s) in PSS, MiB: tf.data (450 to 500; antialiased: no)." in said
    assert "Ahead of prepserver with 1 job(s) in gap, ms: nobody." in said


def test_jobs_are_compared_with_as_many_jobs() -> None:
    found = result([cell("prepserver", 2000), cell("prepserver_4", 8000), cell("torch_cv2_4", 1600)])
    rows = {(row[0], row[1]): row[4] for row in sheets(found)[0].rows}
    assert rows["DataLoader, simplejpeg, cv2", "4"] == "0.20"
    assert targets(found)["4 jobs in sum: prepserver / 4 DataLoaders"] == ("5.00", "yes")


def test_the_plot_is_xml_with_a_bar_for_each_contender() -> None:
    """The fastest comes first."""
    picture = Tree.fromstring(chart(result([cell("dali", 1000), cell("prepserver", 2000), cell("prepserver_4", 8000)])))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert texts == [
        "1 job: images/s", "prepserver", "2000", "DALI (CPU)", "1000", "4 jobs: images/s in sum", "prepserver", "8000",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [0.0, 1.0, 12345.6])
def test_bars_stay_inside_the_picture_in_proportion(value: float) -> None:
    picture = Tree.fromstring(
        bars({"a < b": [Bar("x & y", value, value / 2, value), Bar("half", value / 2, 0, value)]})
    )
    whole, *drawn = picture.findall(f"{SVG}rect")
    lengths = [float(bar.get("width", "")) for bar in drawn]
    assert lengths[1] == pytest.approx(lengths[0] / 2, abs=0.1)
    assert all(float(bar.get("x", "")) + float(bar.get("width", "")) < float(whole.get("width", "")) for bar in drawn)
