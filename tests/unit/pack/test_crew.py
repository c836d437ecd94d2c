from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from prepserver.pack.crew import Answer, Crew, UnreadableError
from prepserver.pack.transcode import Transcoded
from tests.support import leaks


def run(crew: Crew, begin: int, end: int) -> list[Answer]:
    return list(crew.run(begin, end, lambda: None))


def as_bytes(sample: int) -> tuple[int, Transcoded]:
    if sample % 5 == 0:
        time.sleep(0.01)  # results of other samples come first
    return sample + 1, Transcoded(sample.to_bytes(4, "big") * 40_000, "done")


@pytest.mark.parametrize("count", [1, 3])
def test_answers_come_in_the_order_of_the_samples(count: int) -> None:
    answers = run(Crew(as_bytes, count), 3, 80)
    assert [answer.sample for answer in answers] == list(range(3, 80))
    assert all(answer.record == as_bytes(answer.sample)[1].record for answer in answers)
    assert all(answer.read_bytes == answer.sample + 1 and answer.text == "done" for answer in answers)


def test_an_unreadable_sample_is_reported_and_the_rest_goes_on() -> None:
    def work(sample: int) -> tuple[int, Transcoded]:
        if sample == 4:
            raise UnreadableError("the file is gone")
        return as_bytes(sample)

    answers = run(Crew(work, 2), 0, 9)
    assert [(answer.ok, answer.text) for answer in answers if not answer.ok] == [(False, "the file is gone")]
    assert len(answers) == 9


def test_a_dead_process_is_replaced_and_only_its_sample_is_bad() -> None:
    def work(sample: int) -> tuple[int, Transcoded]:
        if sample in (0, 6, 7):
            os.kill(os.getpid(), signal.SIGKILL)
        return as_bytes(sample)

    answers = run(Crew(work, 2), 0, 20)
    assert [answer.sample for answer in answers] == list(range(20))
    bad = {answer.sample: answer.text for answer in answers if not answer.ok}
    assert bad == dict.fromkeys((0, 6, 7), "the process that packed it died (signal 9)")


def test_a_process_that_dies_idle_takes_no_sample_with_it(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def work(sample: int) -> tuple[int, Transcoded]:
        while sample == 0 and not done.exists():
            time.sleep(0.01)
        return as_bytes(sample)

    killed: list[int] = []

    def no_answer_came() -> None:
        if killed:
            done.touch()
            return
        # All that may be begun before sample 0 is done has been answered; until then, the machine is slow.
        for hand in [hand for hand in crew._hands if not hand.given]:
            killed.append(hand.pid)
            os.kill(hand.pid, signal.SIGKILL)
            os.waitid(os.P_PID, hand.pid, os.WEXITED | os.WNOWAIT)  # before more samples are begun

    crew = Crew(work, 2)
    answers = list(crew.run(0, 50, no_answer_came))
    assert [(answer.sample, answer.ok) for answer in answers] == [(sample, True) for sample in range(50)]
    assert killed


def test_nobody_is_left_behind_when_the_one_who_asks_stops_early() -> None:
    others = leaks.children(os.getpid())  # such as the resource tracker of multiprocessing, which stays
    answers = Crew(as_bytes, 3).run(0, 1000, lambda: None)
    next(answers)
    assert len(leaks.children(os.getpid())) == len(others) + 3
    answers.close()  # type: ignore[attr-defined]
    assert leaks.children(os.getpid()) == others


def test_nothing_to_do_starts_nobody() -> None:
    assert run(Crew(as_bytes, 3), 7, 7) == []
