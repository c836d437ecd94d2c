"""The process's own random state: as before after a plug-in has drawn, also where several threads make rows."""

from __future__ import annotations

import random
import threading

import numpy as np
import torch

from prepserver.seeding import kept, seeded


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(1))


def test_seeded_code_draws_the_same_and_leaves_no_trace() -> None:
    with kept():
        with seeded(7, keep=True):
            first = draws()
        with kept():  # within another one, which restores once
            with seeded(7, keep=True):
                assert draws() == first
            assert draws() != first
    states = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes(), torch.get_rng_state()
    with seeded(7, keep=True):
        assert draws() == first
    assert random.getstate() == states[0]
    assert np.random.get_state(legacy=False)["state"]["key"].tobytes() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_threads_keep_their_states_side_by_side() -> None:
    inside, failed = threading.Barrier(2), []

    def make_rows() -> None:
        try:
            with kept():
                inside.wait()
                with seeded(1, keep=True):
                    draws()
                inside.wait()
        except BaseException as error:  # noqa: BLE001 - the thread would only print it
            failed.append(error)
            inside.abort()

    threads = [threading.Thread(target=make_rows) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
