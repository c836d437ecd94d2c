"""The daemon's state as Prometheus metrics: one table maps figures of `prepserver status` to names, types and help.

Metrics have Prometheus's base units. A figure that an entry lacks, or that is unknown now, has no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Entry: TypeAlias = Mapping[str, Any]
State: TypeAlias = dict[str, Any]


class _Figure(NamedTuple):
    """A metric."""

    name: str  # after ``prepserver_`` and the name of its group. One that ends with ``_total`` is a counter.
    # Its key in an entry of the state (with dots for nested ones), or what computes it.
    of: str | Callable[[Entry], float | None]
    help: str  # its meaning
    scale: float = 1.0  # factor from the figure to the metric's unit


class _Group(NamedTuple):
    """Metrics of all entries of one kind."""

    name: str  # the kind; empty for the daemon itself
    labels: Mapping[str, str]  # names of the labels and their keys in an entry
    entries: Callable[[State], Iterable[Entry]]  # finds the entries in the state
    figures: tuple[_Figure, ...]  # their metrics


def _listed(name: str) -> Callable[[State], Iterable[Entry]]:
    return lambda state: state.get(name) or ()


def _in_states(state: State) -> Iterator[Entry]:
    for name in ("starting", "idle", "busy"):
        yield {"state": name, "count": sum(worker["state"] == name for worker in state["workers"])}


def _stages(state: State) -> Iterator[Entry]:
    for stream in state["streams"]:
        for stage, ms in stream.get("stages_ms_per_sample", {}).items():
            yield {"id": stream["id"], "stage": stage, "ms": ms}


def _verdicts(state: State) -> Iterator[Entry]:
    for job in state["jobs"]:
        if verdict := job.get("verdict"):  # an older daemon has none
            yield {**job, "kind": verdict["kind"], "causes": ",".join(verdict["causes"]), "is": 1}


def _quarantined(state: Entry) -> float:
    everywhere = sum(map(len, state["quarantined"].values()))
    return float(everywhere + sum(len(each["samples"]) for each in state.get("quarantined_for_pipelines", ())))


def _percent(key: str) -> Callable[[Entry], float | None]:
    return lambda entry: None if entry[key] is None else entry[key] / 100


_JOB = {"job_name": "name", "rank": "rank", "id": "id"}
"""Labels of a rank. Prometheus itself uses ``job``; ``id`` distinguishes two clients with the same name."""

_GROUPS = (
    _Group("", {}, lambda state: [state], (
        _Figure("uptime_seconds", "uptime_s", "Time since the daemon started"),
        _Figure("rows_filled_total", "rows_filled", "Rows made by the workers"),
        _Figure("rows_per_second", "rows_per_s", "Rows made per second, over the last ten seconds"),
        _Figure("cores_usable", "cores.usable", "Cores that the daemon and its workers may use"),
        _Figure("cores_busy", "cores.busy", "Usable cores that are busy, by all programs"),
        _Figure("rings_bytes", "memory.rings_bytes", "Memory of all rings"),
        _Figure("rings_budget_bytes", "memory.budget_bytes", "Budget of all rings"),
        _Figure("caches_bytes", "memory.caches_bytes", "Memory of all caches"),
        _Figure("caches_budget_bytes", "memory.caches_budget_bytes", "Budget of all caches in memory"),
        _Figure("quarantined_samples", _quarantined, "Samples that are no longer tried because workers died on them"),
    )),
    _Group("", {"state": "state"}, _in_states, (
        _Figure("workers", "count", "Workers by state"),
    )),
    _Group("worker", {"worker": "number"}, _listed("workers"), (
        _Figure("busy_ratio", "busy_fraction", "Fraction of a worker's time for which it makes rows"),
        _Figure("starved_ratio", "starved_fraction", "Fraction of a worker's time without the core it needs"),
        _Figure("restarts_total", "restarts", "Times that the worker was replaced"),
        _Figure("rows_total", "rows", "Rows made by the worker since it started"),
        _Figure("bad_rows_total", "bad_rows", "Rows made by the worker that hold a replacement"),
        _Figure("read_seconds_total", "read_s", "Time spent reading"),
        _Figure("make_seconds_total", "make_s", "Time spent decoding and augmenting"),
    )),
    _Group("stream", {"stream": "id"}, _listed("streams"), (
        _Figure("rows_filled_total", "rows_filled", "Rows of the stream that were made"),
        _Figure("rows_delivered_total", "rows_delivered", "Rows of the stream that jobs took"),
        _Figure("sharing_ratio", "sharing_factor", "Rows delivered for each row made"),
        _Figure("announce_seconds", "announce_ms", "Mean time from a finished chunk to its announcement", 1e-3),
    )),
    _Group("stream", {"stream": "id", "stage": "stage"}, _stages, (
        _Figure("stage_seconds", "ms", "Worker time per row, by stage", 1e-3),
    )),
    _Group("job", _JOB, _listed("jobs"), (
        _Figure("batches_total", "batches", "Batches that the job has taken"),
        _Figure("images_total", "images", "Samples that the job has taken"),
        _Figure("images_per_second", "images_per_s", "Samples that it takes per second, over the last ten seconds"),
        _Figure("wait_seconds_total", "wait_s", "Time for which the job's loop has waited for rows"),
        _Figure("copy_seconds_total", "copy_s", "Time for which the job's loop has waited for copies"),
        _Figure("own_seconds_total", "own_s", "Time that the job's loop has spent between batches"),
        _Figure("wait_ratio", "wait_fraction", "Fraction of the job's time spent waiting, over the last ten seconds"),
        _Figure("epoch", "epoch", "The job's epoch"),
        _Figure("epoch_ratio", "epoch_fraction", "Fraction of the epoch that the job has taken"),
        _Figure("ring_ratio", "ring_fill", "Fraction of the ring filled with rows that the job has not taken"),
        _Figure("lag_rows", "lag_rows", "Rows by which the job is behind the first job of its stream"),
        _Figure("lost_ratio", "verdict.lost_fraction", "Fraction of the job's time that is lost, by its verdict"),
    )),
    _Group("job", {**_JOB, "verdict": "kind", "causes": "causes"}, _verdicts, (
        _Figure("verdict", "is", "1 for the current verdict on the job"),
    )),
    _Group("cache", {"cache": "id", "form": "form"}, _listed("caches"), (
        _Figure("bytes", "bytes", "Size of a cache"),
        _Figure("samples", "rows", "Samples that the cache holds"),
        _Figure("hits_total", "hits", "Samples that were read from the cache"),
        _Figure("misses_total", "misses", "Samples that were not in the cache"),
    )),
    _Group("gpu", {"gpu": "index"}, _listed("gpus"), (
        _Figure("utilisation_ratio", _percent("utilisation_percent"), "GPU utilisation according to NVML"),
        _Figure("memory_used_bytes", "memory_used_bytes", "GPU memory in use"),
        _Figure("memory_total_bytes", "memory_total_bytes", "GPU memory"),
        _Figure("power_watts", "power_w", "Power draw of the GPU"),
        _Figure("pcie_bytes_per_second", "pcie_bytes_per_s", "Bytes that the GPU receives over PCIe: a mean of 30 s"),
    )),
)  # fmt: skip


def metrics(state: State | None) -> Iterator[Metric]:
    """All metrics of the `state` that `prepserver status --json` prints; it is None if no daemon answers."""
    yield GaugeMetricFamily("prepserver_up", "Whether the daemon answers", value=float(state is not None))
    if state is None:
        return
    info = GaugeMetricFamily("prepserver_info", "1, with the daemon's version", labels=("version", "kernels"))
    info.add_metric((state["version"], state["kernels"]["path"]), 1.0)
    yield info
    for group in _GROUPS:
        entries = list(group.entries(state))
        for figure in group.figures:
            name = "_".join(filter(None, ("prepserver", group.name, figure.name)))
            family: GaugeMetricFamily | CounterMetricFamily
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, figure.help, labels=tuple(group.labels))
            for entry in entries:
                value = figure.of(entry) if callable(figure.of) else _found(entry, figure.of)
                if value is not None:
                    family.add_metric([str(entry[key]) for key in group.labels.values()], value * figure.scale)
            yield family


def _found(entry: Entry, key: str) -> float | None:
    value: Any = entry
    for part in key.split("."):
        value = value.get(part)
        if value is None:
            return None
    return float(value)
