"""When an engine is started again."""

from __future__ import annotations

import pytest

from prepserver.daemon.engine import Engine, backoff_s
from prepserver.daemon.poll import Poll
from prepserver.worker.launch import Zygote, ZygoteGone
from tests.support.waiting import wait_until


def test_an_engine_is_started_at_once_and_then_ever_later() -> None:
    poll, gone = Poll(), []

    def read(engine: Engine) -> None:
        for event in engine.process.receive():
            assert isinstance(event, ZygoteGone)
            gone.append(event)
            engine.gone(event.reason, 1000.0)

    engine = Engine(poll, Zygote(program="this"), read)  # which ends at once
    assert not engine.runs
    for number in range(2):
        engine.restart(1000.0)
        assert engine.runs, "not at once"
        wait_until(lambda n=number: poll.run_once(0.1) or len(gone) > n)
        assert not engine.runs
        assert not engine.is_up
        assert "the zygote ended: exit status" in engine.why
    engine.restart(1000.0)
    assert not engine.runs
    engine.restart(1000.0 + backoff_s(2))
    assert engine.runs
    engine.forget()
    engine.process.close()
    poll.close()


@pytest.mark.parametrize(("failures", "waits_s"), [(1, 0.1), (2, 0.2), (9, 25.6), (10, 30.0), (1000, 30.0)])
def test_the_backoff_doubles_up_to_half_a_minute(failures: int, waits_s: float) -> None:
    assert backoff_s(failures) == pytest.approx(waits_s)
