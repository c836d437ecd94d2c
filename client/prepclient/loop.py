"""The training loop, step by step: where its time goes, and what limits it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from prepclient.attachment import Attachment
from prepclient.errors import BadSampleError
from prepclient.form import Convert, Form
from prepclient.headspace import Headspace
from prepclient.launchers import warn_of_launcher
from prepclient.session import Bad, Handed, Session, Totals
from prepclient.side_by_side import SideBySide
from prepclient.timeline import Timeline
from prepclient.timing import Parts, render, spoken

log = logging.getLogger("prepclient")

_inline_is_slow = threading.Event()  # this process was told so; once is enough
_JUDGE_AFTER_NS = 2_500_000_000  # before that too little is known; epochs may be very short


def _warn_of_bad(bad: Sequence[Bad], totals: Totals) -> None:
    """Names a sample that was replaced: the first one, and whenever their number has one more digit."""
    named = next((each for each in reversed(bad) if each.reason), bad[-1])  # of many, a message names the first only
    log.warning(
        "%d of %d samples could not be used: their rows hold others, or nothing. One of the latest is sample %d: %s",
        totals.bad, totals.images, named.index, named.reason,
    )  # fmt: skip


class Loop:
    """A client's training loop over all its epochs."""

    def __init__(self, attachment: Attachment, form: Form, convert: Convert, headspace: Headspace) -> None:
        self._attachment = attachment
        self._form = form
        self._convert = convert
        self.headspace = headspace
        self._side_by_side = SideBySide(attachment)
        self.iterators = 0  # how many were made; only the latest one works
        self._timeline: Timeline | None = None
        self._judge_ns: int | None = 0  # when to ask the daemon what limits this job; None once it is logged
        self._first_ns = 0  # when the loop asked for its first batch
        self._first = Totals()  # totals after that batch, which verdicts leave out: torch may compile for it
        self._left_ns = 0  # when it got its last one; 0 between epochs
        # where the epoch is read, and how many batches are handed out when it ends; None if `end_epoch` was called
        self._ends: tuple[Session, int] | None = None
        self._are_ranks_known = False  # whether the daemon was asked for absent ranks of this job

    @property
    def totals(self) -> Totals:
        """What the loop has received in total."""
        return self._attachment.totals

    def begin_epoch(self, session: Session) -> int:
        """An epoch begins; returns how many batches will have been handed out in total at its end."""
        self._left_ns = 0
        if self._ends == (session, self.totals.batches):  # Lightning and transformers count, and do not ask once more
            self.end_epoch()
        ends_at = self.totals.batches + session.batches_left
        self._ends = session, ends_at
        self.headspace.begin_epoch(self.totals, ends_at)
        return ends_at

    def step(self) -> tuple[Any, Session, Handed]:
        """The next batch or a `BadSampleError`; the caller hands it out by replacing ``session.handed``."""
        asked_ns, left_ns = time.monotonic_ns(), self._left_ns
        if not self._first_ns:
            self._first_ns, self._judge_ns = asked_ns, asked_ns + _JUDGE_AFTER_NS
            warn_of_launcher(self._attachment.spec, os.environ, is_inline=self._attachment.service.inline)
        others_ns = self._side_by_side.others_waits_ns()
        step = self._attachment.step()
        self._side_by_side.waited(step.wait_ns)
        session = self._attachment.session
        assert session is not None
        was, rows = session.handed.totals, step.batch.stop - step.batch.start
        own_ns = max(0, step.own_ns + (asked_ns - left_ns - others_ns if left_ns else 0))
        totals = Totals(
            was.batches + 1, was.images + rows, was.bad + len(step.bad), was.wait_ns + step.wait_ns,
            was.copy_ns + step.copy_ns, was.own_ns + own_ns,
        )  # fmt: skip
        self._first = self._first if was.batches else totals
        batch = self._form(step)
        if not isinstance(batch, BadSampleError):
            if totals.bad and (not was.bad or len(str(totals.bad)) > len(str(was.bad))):
                _warn_of_bad(step.bad, totals)
            self.headspace.saw(batch, was, totals)  # before the conversion: it copies tensors
            batch = self._convert(batch)
        self._left_ns = time.monotonic_ns()
        self._side_by_side.leave()
        if self._timeline is not None and self._timeline.step(step, asked_ns, self._left_ns, left_ns):
            self.end_timeline()
        return batch, session, Handed(step.line, totals)

    def replay(self) -> Any:
        """A batch that the loop had before, to measure the loop without loading; None if the stream continues."""
        batch = self.headspace.replay(self._attachment.totals)
        if batch is None:
            return None
        self._left_ns = 0  # time between replays does not count
        return self._convert(batch)

    def end_epoch(self) -> None:
        """The epoch has ended. Rank 0 logs once what limits this job, as soon as that is known."""
        self._ends = None
        self.headspace.end_epoch()
        self._warn_of_absent_ranks()
        now_ns = time.monotonic_ns()
        if self._judge_ns is None or now_ns < self._judge_ns or self._attachment.rank:
            return
        verdict = self._about_job().get("verdict")
        if verdict is None or verdict["kind"] == "not enough data":
            self._judge_ns = now_ns + _JUDGE_AFTER_NS
            return
        self._judge_ns = None
        if "inline" in verdict["causes"]:
            if _inline_is_slow.is_set():  # a notebook's cell makes a client each time it runs
                return
            _inline_is_slow.set()
        log.log(logging.INFO if verdict["is_fine"] else logging.WARNING, "%s", ". ".join(spoken(verdict)))

    def _warn_of_absent_ranks(self) -> None:
        """Warns once, after an epoch, if other ranks have not attached: nobody got their samples."""
        world_size = self._attachment.world_size
        if world_size == 1 or self._are_ranks_known:
            return
        self._are_ranks_known = True
        if absent := self._about_job().get("absent_ranks"):
            log.warning(
                "this rank has finished its part of an epoch, and ranks %s of %d have not attached: nobody has their "
                "samples. To give one rank all samples, for an evaluation on rank 0 for example, pass "
                "sharding=Sharding(rank=0, world_size=1)",
                ", ".join(map(str, absent)), world_size,
            )  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """See `PrepClient.stats`."""
        totals, parts, said = self.totals, self._parts(), self._about_job()
        return {
            "batches": totals.batches,
            "images": totals.images,
            "bad_samples": totals.bad,
            "wait_s": parts.loading,
            "copy_s": parts.copying,
            "own_s": parts.computing,
            "rest_s": parts.rest,
            "epoch": self._attachment.epoch,
            "start": self._attachment.began,
            "sharing_factor": said.get("sharing_factor"),
            "verdict": said.get("verdict"),
            "headspace": self.headspace.found,
        }

    def table(self) -> str:
        """See `PrepClient.stats`."""
        return render(self.totals, self._parts(), self._about_job().get("verdict"))

    def begin_timeline(self, timeline: Timeline) -> None:
        """Records the next steps; a recording under way ends here."""
        self.end_timeline()
        self._timeline = timeline

    def end_timeline(self) -> None:
        """Ends the recording, if there is one, and writes its file."""
        timeline, self._timeline = self._timeline, None
        if timeline is not None and self._attachment.feed is not None:
            timeline.write(self._about_job)

    def _parts(self) -> Parts:
        return Parts.of(self.totals, time.monotonic_ns() - self._first_ns if self._first_ns else 0)

    def _about_job(self, since_ns: int | None = None) -> dict[str, Any]:
        feed = self._attachment.feed
        return feed.about_job(self.totals.since(self._first), since_ns) if feed is not None else {}
