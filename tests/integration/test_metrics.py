"""`prepserver metrics` beside a real daemon with a job, and the queries of deploy/ against what it serves."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import CenterCrop, PrepClient, SyntheticImages
from prepserver.cli import exits, main
from prepserver.cli.run_page import data_of
from prepserver.telemetry.history import figures
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

parser = pytest.importorskip("prometheus_client.parser")
metrics = pytest.importorskip("prepserver.telemetry.metrics").metrics
pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
WORDS = {
    *("sum", "avg", "max", "count", "by", "rate", "increase", "delta", "or", "absent", "vector", "label_values"),
}


class Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("metrics", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def serving(path: Path, runtime_dir: Path) -> Iterator[None]:
    command = [*(sys.executable, "-m", "prepserver.cli", "metrics", "--listen", f"unix:{path}"),
               *("--runtime-dir", str(runtime_dir))]  # fmt: skip
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "serving /metrics" in process.stderr.readline()
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == exits.OK


def get(path: Path, what: str, accept: str = "") -> tuple[int, str]:
    with contextlib.closing(Unix(path)) as connection:
        connection.request("GET", what, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def families(text: str) -> dict[str, list[Any]]:
    """The samples of a scrape, by name."""
    found: dict[str, list[Any]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_metrics_health_log_and_report_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    with Server(workers=1, arguments=["--log-format", "json"]) as server:
        path = server.home / "metrics.sock"
        with serving(path, server.runtime_dir):
            with PrepClient(
                SyntheticImages(64, (32, 32)), [CenterCrop(8)], batch_size=8, job='a "b"',
                runtime_dir=server.runtime_dir,
            ) as train:  # fmt: skip
                scrapes = iter(lambda: families(get(path, "/metrics")[1]), None)
                found = next(scrapes)
                while "prepserver_job_wait_ratio" not in found:  # a rate is known after some seconds
                    list(train)
                    time.sleep(0.3)
                    found = next(scrapes)
                status = server.status()
                (job,), (stream,) = status["jobs"], status["streams"]
                assert {s.labels["state"]: s.value for s in found["prepserver_workers"]}.keys() == {
                    "starting", "idle", "busy",
                }  # fmt: skip
                (batches,) = found["prepserver_job_batches_total"]
                assert batches.labels == {"job_name": 'a "b"', "rank": "0", "id": str(job["id"])}
                assert 0 < batches.value <= job["batches"]
                assert 8 * batches.value == found["prepserver_job_images_total"][0].value
                (verdict,) = found["prepserver_job_verdict"]
                assert verdict.labels["verdict"]
                assert found["prepserver_rings_bytes"][0].value == status["memory"]["rings_bytes"] > 0
                assert {s.labels["stage"] for s in found["prepserver_stream_stage_seconds"]} >= {"read", "decode"}
                assert found["prepserver_stream_sharing_ratio"][0].labels == {"stream": str(stream["id"])}
                check_queries(found | of_gpus(status))
                code, openmetrics = get(path, "/metrics", "application/openmetrics-text; version=1.0.0")
                assert (code, openmetrics.endswith("# EOF\n")) == (200, True)
                assert get(path, "/metrics", "application/openmetrics-text; version=abc")[0] == 200
            check_report(server, capsys)
            assert get(path, "/health") == (200, '{"state": "running", "why": ""}\n')
            assert get(path, "/secrets")[0] == 404
            # one that connects and hangs up keeps nobody from an answer
            with socket.socket(socket.AF_UNIX) as rude:
                rude.connect(str(path))
            once = cli("metrics", "--once", "--runtime-dir", str(server.runtime_dir))
            assert families(once.stdout)["prepserver_up"][0].value == 1
            server.stop()
            wait_until(lambda: get(path, "/health")[0] == 503)
            assert families(get(path, "/metrics")[1]).keys() == {"prepserver_up"}
        assert cli("metrics", "--once", "--runtime-dir", str(server.runtime_dir)).returncode == exits.NO_DAEMON
        for listen in ("9477", "127.0.0.1:99999", "127.0.0.1:http"):
            assert main(["metrics", "--listen", listen]) == exits.USAGE
        with socket.create_server(("127.0.0.1", 0)) as busy:
            assert main(["metrics", "--listen", f"127.0.0.1:{busy.getsockname()[1]}"]) == exits.FAILED
        said = [json.loads(line) for line in server.log().splitlines()]
        assert {each["level"] for each in said} <= {"info", "warning"}
        assert any("ready in" in each["message"] for each in said)


def test_a_socket_that_somebody_listens_on_is_left_to_him(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "metrics.sock", tmp_path / "attach.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with serving(path, tmp_path), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(other))
        daemon.listen()
        for taken in (path, other):
            assert main(["metrics", "--listen", f"unix:{taken}"]) == exits.FAILED
            assert capsys.readouterr().err == f"prepserver metrics: --listen unix:{taken}: Address already in use\n"
        assert get(path, "/health")[0] == 503
    assert not path.exists()


def test_a_socket_that_has_replaced_ones_own_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with serving(path, tmp_path):
        path.rename(tmp_path / "old.sock")
        path.touch()
    assert path.exists()


def check_report(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """What was counted of the job is in its report, after its end."""
    where = ("--runtime-dir", str(server.runtime_dir))
    file = server.home / "run.html"
    wait_until(lambda: main(["report", 'a "b"', "-o", str(file), *where]) == exits.OK)
    text = file.read_text()
    assert "SyntheticImages of 64 samples" in text
    assert "<b>loading</b>" in text.replace("<span>", "<b>").replace("</span>", "</b>")
    (track,) = data_of(text).by_images
    assert figures(track.slices)["samples/s"] > 0  # type: ignore[operator]
    capsys.readouterr()
    assert main(["compare", 'a "b"', str(file), "--json", *where]) == exits.OK
    assert json.loads(capsys.readouterr().out)["differs"] == {}
    for unknown in ("nobody", 'a "b"~1', 'a "b"~9'):
        assert main(["report", unknown, "-o", str(file), *where]) == exits.FAILED
    said = capsys.readouterr().err
    assert "jobs with a log: 'a \"b\"'" in said
    assert "3 runs of a job are kept" in said


def of_gpus(status: dict[str, Any]) -> dict[str, list[Any]]:
    """What a scrape would have of a GPU, which is not here."""
    gpu = {"index": 0, "utilisation_percent": 97, "memory_used_bytes": 1, "memory_total_bytes": 2, "power_w": 600.0,
           "pcie_bytes_per_s": None}  # fmt: skip
    named = [each for each in metrics({**status, "gpus": [gpu]}) if each.name.startswith("prepserver_gpu_")]
    found = {each.name: each.samples for each in named if each.samples}
    assert found["prepserver_gpu_utilisation_ratio"][0].value == 0.97
    assert "prepserver_gpu_pcie_bytes_per_second" not in found
    return found


def check_queries(scraped: dict[str, list[Any]]) -> None:
    """Every query of deploy/ names only metrics and labels that a scrape has; GPUs may not be there."""
    queries = [*dashboard_queries(), *alert_queries()]
    assert len(queries) > 30
    for query in queries:
        text = re.sub(r"\$__rate_interval|\d+[smhd]\b|\"[^\"]*\"", "", query)  # durations and values
        names = set(re.findall(r"\bprepserver_\w+", text))
        assert names, query
        labels = set(re.findall(r"(\w+)\s*(?:=~|=|!=)", " ".join(re.findall(r"\{([^}]*)\}", text))))
        labels |= {each.strip() for group in re.findall(r"by \(([^)]*)\)", text) for each in group.split(",")}
        if match := re.match(r"label_values\(\w+, (\w+)\)", text):
            labels.add(match[1])
        assert set(re.findall(r"[a-z_]\w*", text)) <= names | labels | WORDS, query
        for name in names:
            assert name in scraped, f"{query}: no metric {name}"
            assert labels <= scraped[name][0].labels.keys(), f"{query}: {labels}"


def dashboard_queries() -> list[str]:
    """Each with the labels of its legend as if it were grouped by them."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    panels = [
        each["expr"] + "".join(f" by ({label})" for label in re.findall(r"\{\{(\w+)\}\}", each["legendFormat"]))
        for each in targets
    ]
    return panels + [each["definition"] for each in board["templating"]["list"] if each["type"] == "query"]


def alert_queries() -> list[str]:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    return [rule["expr"] for rule in group["rules"]]
