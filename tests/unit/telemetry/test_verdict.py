"""The verdict on a job as a function of counters: planted limits of each kind, alone and in pairs, and healthy runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pack import PackError
from prepserver.pack.report import Report
from prepserver.pack.run import Options, pack
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline import kinds
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import (
    Arrays,
    Coco,
    Csv,
    ImageFolder,
    Jsonl,
    Packed,
    Parquet,
    Plugin,
    Take,
    TextLines,
    Windows,
)
from prepserver.source.errors import SourceError
from prepserver.telemetry.facts import NOTICED, Facts, FullCache
from prepserver.telemetry.finding import FINE
from prepserver.telemetry.remedies import Remedies, remedies_of
from prepserver.telemetry.verdict import LEAST_BATCHES, LEAST_S, judge

HEALTHY = Facts(
    span_s=10.0,
    batches=1000,
    images_per_s=1000.0,
    waiting=0.01,
    copying=0.01,
    waits_for={"workers": 0.1},
    workers=8,
    workers_busy=0.7,
    workers_run=0.65,
    workers_starved=0.02,
    used=5.6,
    stages={"read": 0.0006, "decode": 0.004, "op RandomResizedCrop": 0.001},
    cores=16.0,
    cores_idle=8.0,
    gpu_busy=0.97,
    ring_rows=4096,
    round_rows=256,
)
STARVED = {"waiting": 0.5, "workers_busy": 0.99, "workers_run": 0.9, "used": 7.9}
"""The loop waits half of its time, and the workers have none left."""

WAITS_OUTSIDE = {"workers_run": 0.05}
"""The workers themselves wait, as for storage."""


def judged(**other: Any) -> Any:
    return judge(replace(HEALTHY, **other))


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"gpu_busy": None},
        {"workers_busy": 0.1, "used": 0.8},
        {"waits_for": {}},
        {"workers_busy": 0.99},  # just enough of them
        {"loop_starved": 0.1},
        {"waiting": 0.049, "copying": 0.049},
        {"inline": True},
        {"pure_kernels": "no compiler"},
        {"waiting": 0.4, "copying": 0.4, "in_epochs": 0.1},  # an evaluation now and then
    ],
)
def test_a_healthy_run_is_told_nothing(other: dict[str, Any]) -> None:
    found = judged(**other)
    assert found.is_fine
    assert (found.next, found.also, found.causes) == ("", (), ())


@pytest.mark.parametrize(
    ("other", "kind", "causes", "says"),
    [
        (STARVED, "data-bound", {"decode", "workers"}, "start 8 more workers"),
        ({**STARVED, "waiting": 0.2}, "data-bound", {"decode", "workers"}, "start 2 more workers, which 8.0 idle"),
        ({**STARVED, "cores_idle": 0.3}, "data-bound", {"decode"}, 'once: cache="decoded" keeps'),
        ({**STARVED, "cores_idle": 0.3, "cache": "decoded"}, "data-bound", {"decode"}, "once: `prepserver pack"),
        ({**STARVED, "stages": {"read": 0.05, "decode": 0.004}}, "data-bound", {"read", "workers"}, "faster storage"),
        ({"bad": 0.1}, "data-bound", {"bad samples"}, "by `prepserver audit`; on_error='raise' stops"),
        ({**STARVED, "bad": 0.9}, "data-bound", {"bad samples"}, "`prepserver audit`"),
        (
            {**STARVED, "stages": {"read": 0.05, "decode": 0.004}, "reads_plugin": True},
            "data-bound", {"read", "workers"}, "make the Dataset's `__getitem__` cheaper, or let `prepserver pack` run",
        ),
        ({**STARVED, **WAITS_OUTSIDE, "cores_idle": 0.0}, "data-bound", {"decode", "workers"}, "8 more workers"),
        (
            {**STARVED, "stages": {"read": 0.004, "decode": 0.004, "op glare": 0.08}},
            "data-bound", {"op glare", "workers"}, "smaller, if it changes images, or compile it (without",
        ),
        (  # what cannot be done on a batch, and what can
            {**STARVED, "stages": {"decode": 0.004, "op GaussianBlur": 0.08}},
            "data-bound", {"op GaussianBlur", "workers"}, "cheaper: put it after ops that make images smaller (without",
        ),
        (
            {**STARVED, "stages": {"decode": 0.004, "op RandAugment": 0.08}},
            "data-bound", {"op RandAugment", "workers"}, "smaller, or move it to the GPU with device_ops= (without",
        ),
        (  # the machine is full, and yet the workers wait for something else most of the time
            {**STARVED, **WAITS_OUTSIDE, "workers_starved": 0.5, "cores_idle": 0.0},
            "data-bound", {"decode", "workers"}, "8 more workers",
        ),
        ({**STARVED, "pure_kernels": "built without"}, "data-bound", {"decode", "workers"}, "(off: built without)"),
        (
            {**STARVED, "workers_run": 0.39, "workers_starved": 0.6, "cores_idle": 0.0},
            "host-CPU-bound", {"decode"}, "more workers would not help",
        ),
        ({"waiting": 0.9, "waits_for": {"job slow": 3.0, "workers": 1.0}}, "data-bound", {"job slow"}, "detach"),
        ({"waiting": 0.9, "waits_for": {"job a of uid 7": 3.0}}, "data-bound", {"job a of uid 7"}, "nothing: the job"),
        (STARVED | {"waits_for": {"job slow": 1.0, "workers": 9.0}}, "data-bound", {"decode", "workers"}, "8 more"),
        (
            {**STARVED, "full_cache": FullCache("decoded", 0.25, 40 << 30, "memory")},
            "data-bound", {"cache", "decode", "workers"}, 'memory = "40G" under [cache], or --cache-memory (up to ',
        ),
        (
            {**STARVED, "stages": {"read": 0.05}, "full_cache": FullCache("encoded", 0.5, 9 << 20, "disk")},
            "data-bound", {"cache", "read", "workers"}, 'disk = "10M" under [cache]',
        ),
        (  # reading is not what takes the time
            {**STARVED, "full_cache": FullCache("encoded", 0.5, 9 << 20, "disk")},
            "data-bound", {"decode", "workers"}, "--max-side",
        ),
        (STARVED | {"used": 2.0}, "data-bound", {"decode", "other streams", "workers"}, "share one pass"),
        ({"waiting": 0.9, "waits_for": {"ranks": 3.0}}, "data-bound", {"ranks"}, "missing ranks"),
        ({"waiting": 0.9, "waits_for": {"stream 4": 3.0}}, "data-bound", {"joining"}, "wait_s=0"),
        ({"waiting": 0.9, "waits_for": {"start": 3.0}}, "data-bound", {"joining"}, "then the jobs share"),
        ({"waiting": 0.3, "workers_busy": 0.4, "ring_rows": 512}, "data-bound", {"ring"}, "prefetch"),
        ({"waiting": 0.3, "workers_busy": 0.4}, "data-bound", {"bursts"}, "prefetch"),
        ({"waiting": 0.3, "workers_busy": 0.1, "cores_idle": 0.2}, "host-CPU-bound", {"cores"}, "fewer training proc"),
        ({"waiting": 0.3, "workers_busy": 0.4, "workers_died": 2}, "data-bound", {"bursts"}, "prefetch"),
        ({"waiting": 0.9, "workers_busy": 0.0, "workers_died": 9}, "data-bound", {"dying workers"}, "quarantine`"),
        ({**STARVED, "workers_died": 9}, "data-bound", {"decode", "workers"}, "8 more"),
        ({"copying": 0.4}, "copy-bound", {"copy"}, "up to 1,667 samples/s, 1.7x"),
        ({"gpu_busy": 0.3}, "host-CPU-bound", {"loop"}, "torch.compile"),
        ({"loop_starved": 0.5, "workers_busy": 0.5}, "host-CPU-bound", {"loop"}, "fewer workers, or stop"),
        ({"waiting": 0.8, "inline": True}, "data-bound", {"inline"}, "workers=N"),
    ],
)  # fmt: skip
def test_a_planted_limit_is_named_with_its_cure(other: dict[str, Any], kind: str, causes: set[str], says: str) -> None:
    found = judged(**other)
    assert (found.kind, set(found.causes)) == (kind, causes)
    assert says in found.next
    assert found.why
    assert not found.is_fine


COLUMNS: dict[str, Any] = {"x": kinds.Scalar(), "v": kinds.Array((2,)), "label": kinds.Label()}
TEXTS: dict[str, Any] = {"t": kinds.Text(), "label": kinds.Label()}
PHOTOS: dict[str, Any] = {"i": kinds.Image(), "m": kinds.Mask()}
BOXES: dict[str, Any] = {"i": kinds.Image(), "boxes": kinds.Boxes()}
KEPT, FASTER, ARRAYS = 'cache="encoded"', "faster storage", "read them with Arrays"
PACK, PIXELS, SHRINK = "`prepserver pack`", "`prepserver pack --form pixels`", "`prepserver pack --max-side"
DECODED, CHEAPER, FEWER = 'cache="decoded"', "`__getitem__` cheaper", "columns that are not needed"


@pytest.mark.parametrize(
    ("source", "reading", "decoding"),
    [
        (Csv("/a", COLUMNS), {KEPT, FASTER, ARRAYS}, {FEWER}),
        (Windows(Csv("/a", COLUMNS), 5), {FASTER, ARRAYS}, {FEWER}),
        (Windows(Csv("s3://b/a", COLUMNS), 5), {KEPT, FASTER, ARRAYS}, {FEWER}),
        (Csv("/a", TEXTS), {KEPT, FASTER, PACK}, {FEWER}),
        (Jsonl("s3://b/a", TEXTS), {KEPT, FASTER}, {FEWER}),
        (Take(TextLines("/a"), 5), {KEPT, FASTER, PACK}, {FEWER}),
        (Parquet("/a", columns=COLUMNS), {KEPT, FASTER, ARRAYS}, {FEWER}),
        (Parquet("/a", columns=TEXTS), {KEPT, FASTER, PACK}, {FEWER}),
        (Arrays(x="/x", columns={"x": kinds.Scalar()}), {FASTER}, {FEWER}),
        (Csv("/a", PHOTOS), {KEPT, FASTER, PACK}, {DECODED, PIXELS}),
        (ImageFolder("/a"), {FASTER, PACK}, {DECODED, PIXELS, SHRINK}),
        (ImageFolder("s3://b/a"), {KEPT, FASTER}, {DECODED}),
        (Packed("/a"), {FASTER}, {DECODED}),
        (Plugin("a", columns=BOXES), {CHEAPER, PACK}, {PIXELS}),
        (Plugin("a", columns=COLUMNS), {CHEAPER}, {FEWER}),
        (Coco("s3://b/a", "s3://b/a.json"), {KEPT, FASTER}, {"make the images smaller"}),
    ],
    ids=lambda each: "" if isinstance(each, set) else type(each).__name__,
)
def test_only_what_source_and_columns_allow_is_advised(source: Any, reading: set[str], decoding: set[str]) -> None:
    can = remedies_of(source)

    def said(*stages: str, **other: Any) -> str:
        facts = {**STARVED, "cores_idle": 0.3, "remedies": can, "reads_plugin": isinstance(source, Plugin)}
        return str(judged(**facts | {"stages": dict.fromkeys(stages, 0.05)} | other).next)

    def found(text: str) -> set[str]:
        words = (KEPT, FASTER, ARRAYS, PACK, PIXELS, SHRINK, DECODED, CHEAPER, FEWER, "make the images smaller")
        return {word for word in words if word in text}

    assert found(said("read")) == reading
    assert found(said("read", cache="encoded")) == reading - {KEPT}
    assert found(said("decode")) == decoding
    assert found(said("decode", cache="decoded")) in (decoding - {DECODED}, {"make the images smaller"})
    assert ("ops that make images smaller" in said("op Tokenize")) == can.images
    assert found(said()) == {PACK} & reading
    assert (FEWER in said(workers_busy=0.1, waiting=0.0, copying=0.5)) == (not can.images)


def test_workers_that_do_little_are_not_to_be_fewer() -> None:
    assert judged(loop_starved=0.5, workers_busy=0.05).next.startswith("stop other programs")


def test_no_decoded_cache_is_advised_where_images_move_apart() -> None:
    facts = {**STARVED, "stages": {"decode": 0.05}, "remedies": remedies_of(ImageFolder("/a"), is_apart=True)}
    assert DECODED not in judged(**facts).next


RAGGED = Csv("/a", {"x": kinds.Array()})
BANDS = Csv("/a", {"x": kinds.Image(channels=13)})


@pytest.mark.parametrize(
    "source", [Csv("/a", COLUMNS), RAGGED, Csv("/a", TEXTS), Packed("/a"), ImageFolder("s3://b/a"), BANDS]
)
def test_packing_is_advised_where_it_is_not_refused(source: SourceSpec, tmp_path: Path) -> None:
    with pytest.raises((PackError, SourceError)) as caught:
        pack(source, tmp_path / "packed", Options(Transcoder(False), 1 << 20, 1, False), Report())
    assert remedies_of(source).packs == (not getattr(caught.value, "usage", False))


@pytest.mark.parametrize(
    ("other", "causes", "also"),
    [
        ({**STARVED, "stages": {"read": 0.05, "op blur": 0.06}}, ("op blur", "read"), ""),
        ({**STARVED, "copying": 0.2}, ("decode",), "copy-bound"),
        ({**STARVED, "waiting": 0.2, "copying": 0.5}, ("copy",), "data-bound"),
        ({"waiting": 0.2, "waits_for": {"job slow": 1.0}, "copying": 0.1}, ("job slow",), "copy-bound"),
        ({"copying": 0.1, "loop_starved": 0.3}, ("loop",), "copy-bound"),
        ({"copying": 0.4, "waiting": 0.2, "loop_starved": 0.45}, ("loop",), "copy-bound"),
    ],
)
def test_of_two_planted_limits_both_are_named(other: dict[str, Any], causes: tuple[str, ...], also: str) -> None:
    found = judged(**other)
    assert tuple(cause for cause in found.causes if cause != "workers") == causes
    assert also in ", ".join(found.also)


def test_the_promised_rate_is_never_more_than_the_loop_can_take() -> None:
    """Two stages take half each: without one of them the workers could give twice as much, and the loop takes 1.25."""
    found = judged(**{**STARVED, "waiting": 0.2, "stages": {"read": 0.05, "op blur": 0.05}})
    assert found.next.count("up to 1,250 samples/s, 1.2x") == 3


def test_little_is_said_of_little() -> None:
    assert judged(span_s=LEAST_S - 0.1, **STARVED).kind == "not enough data"
    assert judged(batches=LEAST_BATCHES - 1, **STARVED).kind == "not enough data"
    assert "took no batch in the last 10 s" in judged(images_per_s=0.0, waiting=0.0).why
    assert judged(batches=0, **{**STARVED, "waiting": 1.0}).kind == "data-bound"  # it hangs: say why


fractions = st.floats(0, 1)
facts = st.builds(
    Facts,
    span_s=st.floats(0, 100),
    batches=st.integers(0, 10**9),
    images_per_s=st.floats(0, 1e7),
    waiting=fractions,
    copying=fractions,
    waits_for=st.dictionaries(st.sampled_from(["workers", "job a", "ranks", "start", "stream 3"]), st.floats(0, 9)),
    workers=st.integers(0, 1024),
    workers_busy=fractions,
    workers_run=fractions,
    workers_starved=fractions,
    used=st.floats(0, 1024),
    stages=st.dictionaries(st.sampled_from(["read", "decode", "op a", "op b"]), st.floats(0, 100)),
    cores=st.floats(0.1, 1024),
    cores_idle=st.floats(0, 1024),
    loop_starved=fractions,
    gpu_busy=st.none() | fractions,
    ring_rows=st.integers(0, 10**9),
    round_rows=st.integers(0, 10**6),
    full_cache=st.none()
    | st.builds(
        FullCache, st.sampled_from(["encoded", "decoded"]), fractions, st.integers(1, 1 << 50),
        st.sampled_from(["memory", "disk"]),
    ),
    pure_kernels=st.sampled_from(["", "why"]),
    inline=st.booleans(),
    remedies=st.tuples(*[st.booleans()] * 6).map(lambda can: Remedies(*can)),
)  # fmt: skip


def test_the_only_worker_is_never_one_too_many() -> None:
    found = judged(loop_starved=0.5, workers=1)
    assert (found.kind, found.causes) == ("host-CPU-bound", ("loop",))
    assert "workers" not in found.next


@given(facts)
def test_every_verdict_is_complete_and_every_healthy_one_silent(given_facts: Facts) -> None:
    found = judge(given_facts)
    assert found.why
    assert found.is_fine == (found.kind in FINE) == (not found.next) == (found.lost == 0.0)
    assert "nan" not in found.why + found.next
    if found.is_fine and found.kind != "not enough data":
        assert max(given_facts.waiting, given_facts.copying) < NOTICED
    elif not found.is_fine:
        assert found.causes
        assert found.kind not in ("compute-bound", "healthy")


@given(facts, st.floats(0.2, 0.6))
def test_the_larger_of_two_losses_is_the_verdict(given_facts: Facts, lost: float) -> None:
    both = replace(
        given_facts, span_s=9.0, batches=99, images_per_s=9.0, waiting=lost, copying=0.9 - lost, loop_starved=0.0
    )
    found = judge(both)
    assert (found.kind == "copy-bound") == (both.copying > both.waiting)
    assert len(found.also) == 1
