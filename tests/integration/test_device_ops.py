"""Ops on batches with a real daemon: the batches that are made inline, and one pass for jobs that differ in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prepclient import ColorJitter, CutMix, MixUp, PrepClient, RandAugment, RandomChoice, RandomErasing, SyntheticImages
from tests.support.clients import OPS
from tests.support.server import Server

pytestmark = pytest.mark.integration

SPEC: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 4, "fields": "dict", "normalize": ((0.5,), (0.2,))}
MIXED: list[Any] = [
    RandAugment(),
    ColorJitter(0.4, 0.4),
    RandomErasing(0.5),
    RandomChoice([MixUp(1000), CutMix(1000)], [1, 2]),
]
LISTS: list[list[Any]] = [MIXED, [RandomErasing(1.0)], []]


def test_jobs_with_other_ops_share_one_lane_and_resume(server: Server) -> None:
    source = SyntheticImages(120, size=48)
    jobs = [
        PrepClient(source, OPS, device_ops=ops, runtime_dir=server.runtime_dir, job=f"job {n}", **SPEC)
        for n, ops in enumerate(LISTS)
    ]
    made: list[list[dict[str, Any]]] = [[] for _ in jobs]
    streams = [iter(job) for job in jobs]
    for batches in zip(*streams, strict=True):  # hand in hand: none waits for another
        for found, batch in zip(made, batches, strict=True):
            found.append(batch)
        if len(made[0]) == 3:
            status = server.status()
            assert [len(stream["lanes"]) for stream in status["streams"]] == [1]
            assert len(status["jobs"]) == 3
            state = jobs[0].state_dict()
    for job in jobs:
        job.close()
    for ops, found in zip(LISTS, made, strict=True):
        with PrepClient(source, OPS, device_ops=ops, inline=True, **SPEC) as inline:
            assert_equal(list(inline), found)
    with PrepClient(source, OPS, device_ops=MIXED, runtime_dir=server.runtime_dir, **SPEC) as again:
        again.load_state_dict(state)
        assert_equal(list(again), made[0][3:])


def assert_equal(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    assert len(expected) == len(found) > 0
    for want, got in zip(expected, found, strict=True):
        assert want.keys() == got.keys()
        assert all(torch.equal(want[name], got[name]) for name in want)
