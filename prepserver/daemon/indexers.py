"""Indexer processes: one for each listing, and another if one dies without an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from prepserver.daemon.poll import Poll
from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.worker.channel import ChannelClosed
from prepserver.worker.child import Child
from prepserver.worker.launch import ZygoteAbsent, ZygoteError

log = logging.getLogger(__name__)

_TRIES = 3  # an indexer is easily killed, and the jobs that wait for its listing are not to blame


@dataclass(slots=True, eq=False)
class Question:
    """A source to list. `child` is None until a zygote can fork one; `at` is the file that the indexer began last."""

    request: work.BuildIndex
    report: Callable[[Any], None]
    child: Child | None = None
    tries: int = 0
    at: str = ""


class Indexers:
    """The indexers that run and the questions that wait for one.

    Args:
        poll: The daemon's.
        spawn: Asks the zygote for an indexer; raises `ZygoteError`.
    """

    def __init__(self, poll: Poll, spawn: Callable[[], Child]) -> None:
        self._poll = poll
        self._spawn = spawn
        self._questions: list[Question] = []

    def ask(self, question: Question) -> None:
        """Starts an indexer for `question`, or keeps the question for the next zygote."""
        if question not in self._questions:
            self._questions.append(question)
        try:
            child = question.child = self._spawn()
        except ZygoteAbsent:
            return
        except ZygoteError as e:
            self._questions.remove(question)
            question.report(work.IndexFailed(f"cannot list the source now: {e}; try again in a few seconds"))
            return
        question.tries += 1
        self._poll.watch(child.fileno(), lambda: self._read(question, child))
        try:
            child.send(question.request)
        except ChannelClosed:
            return  # its end is an event of its own
        self._poll.watch_writing(child.fileno(), child.blocked)

    def zygote_ready(self) -> None:
        """Asks the questions that waited for a zygote."""
        for question in [q for q in self._questions if q.child is None]:
            self.ask(question)

    def zygote_gone(self, reason: str) -> None:
        """All indexers have gone with it."""
        for question in [q for q in self._questions if q.child is not None]:
            self._lost(question, reason)

    def holds(self, child: Child) -> bool:
        """Whether `child` still works on a question."""
        return any(q.child is child for q in self._questions)

    def exited(self, child: Child, reason: str) -> None:
        """An indexer ended."""
        for question in [q for q in self._questions if q.child is child]:
            self._read(question, child)  # its answer may still be unread
            if question.child is child:
                self._lost(question, reason)

    def cancel(self, question: Question) -> None:
        """Drops a question, and kills its indexer."""
        if question in self._questions:
            self._questions.remove(question)
            self._hang_up(question)

    def close(self) -> None:
        """Forgets the questions; the indexers end with the zygote."""
        for question in self._questions:
            if question.child is not None:
                self._poll.forget(question.child.fileno())
        self._questions.clear()

    def _lost(self, question: Question, reason: str) -> None:
        log.warning("an indexer ended without an answer (%s), at its try %d", reason, question.tries)
        self._hang_up(question)
        if question.tries < _TRIES:
            question.request, question.at = replace(question.request, one_by_one=True), ""
            self.ask(question)
        else:
            at = f". It was reading {question.at}: if that is damaged, remove it or write it again" * bool(question.at)
            self._answer(question, work.IndexFailed(f"the indexer ended: {reason}; {_TRIES} of them did{at}"[:4096]))

    def _read(self, question: Question, child: Child) -> None:
        if question.child is not child:
            return
        try:
            child.flush()
            for message in child.messages():
                if not isinstance(message, work.Indexing):
                    self._answer(question, message)
                    return
                if message.at:
                    question.at = message.at
                else:
                    question.report(message)
        except ChannelClosed:
            self._poll.forget(child.fileno())
        except ProtocolError as e:
            self._answer(question, work.IndexFailed(f"protocol error of the indexer: {e}"))
        else:
            self._poll.watch_writing(child.fileno(), child.blocked)

    def _answer(self, question: Question, message: work.Indexed | work.IndexFailed) -> None:
        self.cancel(question)
        question.report(message)

    def _hang_up(self, question: Question) -> None:
        if question.child is not None:
            self._poll.forget(question.child.fileno())
            question.child.kill()
            question.child.close()
            question.child = None
