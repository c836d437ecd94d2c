"""The training loop, step by step: its iterator, where its time goes, and what limits it."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prepclient.attachment import Attachment
from prepclient.errors import BadSampleError
from prepclient.form import Convert, Form
from prepclient.headspace import Headspace
from prepclient.session import Bad, Handed, Session, Totals
from prepclient.timeline import Timeline
from prepclient.timing import Parts, render, spoken
from prepclient.turns import Turn, Turns

log = logging.getLogger("prepclient")

_inline_is_slow = threading.Event()  # this process was told so; once is enough
_JUDGE_AFTER_NS = 2_500_000_000  # before that too little is known; epochs may be very short
_SIDE_BY_SIDE = 3  # turns that two loops take from each other before they count as one


class _Thread(threading.local):
    """What a thread's loops have in common: with `zip` it reads several side by side."""

    waits_ns = 0  # how long it has waited for rows
    latest: weakref.ref[Loop] | None = None  # whose step was the last one


_thread = _Thread()


def _warn_of_bad(bad: Sequence[Bad], totals: Totals) -> None:
    """Names a sample that was replaced: the first one, and whenever their number has one more digit."""
    named = next((each for each in reversed(bad) if each.reason), bad[-1])  # of many, a message names the first only
    log.warning(
        "%d of %d samples could not be used: their rows hold others, or nothing. One of the latest is sample %d: %s",
        totals.bad, totals.images, named.index, named.reason,
    )  # fmt: skip


class Epoch:
    """Iterates over the rest of one epoch, until the client has handed out `ends_at` batches in total.

    Iterators are numbered, because only the client's latest one works.
    """

    def __init__(self, client: Turns, loop: Loop, ends_at: int) -> None:
        self._client = client
        self._loop = loop
        self.begin_at(ends_at)
        self._began_at = self._loop.totals.batches
        self._ended = False

    @property
    def is_unread(self) -> bool:
        """Whether it is the client's latest iterator and nothing was taken from it."""
        return self._loop.iterators == self._number and self._loop.totals.batches == self._began_at

    def begin_at(self, ends_at: int) -> None:
        """Becomes the latest iterator, over another epoch. Only an unread iterator may."""
        self._number, self._ends_at = self._loop.iterators, ends_at

    def __del__(self) -> None:
        """The loop has dropped it, perhaps early: from here on, `len` of the client is that of the next epoch."""
        if self._loop.iterators == self._number:
            self._loop.headspace.end_epoch()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Number of batches that are left."""
        return 0 if self._ended else self._of_stream + self._loop.headspace.left

    @property
    def _of_stream(self) -> int:
        return max(0, self._ends_at - self._loop.totals.batches)

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: The epoch has ended.
            RuntimeError: The client was iterated, closed or moved after this iterator was made.
            BadSampleError: Takes the place of a batch, which counts as handed out.
            PrepClientError: No batch can be had; the next call tries again.
        """
        turn = Turn()
        try:
            self._client._take(turn)
            if self._ended:
                raise StopIteration
            if self._loop.iterators != self._number:
                raise RuntimeError(
                    "this iterator is of an earlier epoch: its PrepClient was iterated, closed or moved since. Loops "
                    "that run at the same time each need their own PrepClient; they share the daemon's work"
                )
            replay = self._loop.replay()
            if replay is not None:
                turn.is_over = True; return replay  # noqa: E702  # fmt: skip
            if self._of_stream == 0:
                self._ended = True  # for good, even if the client moves back
                self._loop.end_epoch()
                raise StopIteration
            batch, session, handed = self._loop.step()
            # ORDER: statements that share a line must stay together and must not call anything: a signal handler, which
            # may raise, runs only after calls.
            if isinstance(batch, BadSampleError):  # the next call gives the batch after it
                try:
                    session.handed = handed; raise batch  # noqa: E702  # fmt: skip
                finally:
                    del batch  # its traceback refers to this frame, and would keep it alive
            session.handed = handed; turn.is_over = True; return batch  # noqa: E702  # fmt: skip
        except BaseException:
            turn.is_over = True; raise  # noqa: E702  # fmt: skip


class Loop:
    """A client's training loop over all its epochs."""

    def __init__(self, attachment: Attachment, form: Form, convert: Convert, headspace: Headspace) -> None:
        self._attachment = attachment
        self._form = form
        self._convert = convert
        self.headspace = headspace
        self.iterators = 0  # how many were made; only the latest one works
        self._timeline: Timeline | None = None
        self._judge_ns: int | None = 0  # when to ask the daemon what limits this job; None once it is logged
        self._first_ns = 0  # when the loop asked for its first batch
        self._first = Totals()  # totals after that batch, which verdicts leave out: torch may compile for it
        self._left_ns = 0  # when it got its last one; 0 between epochs
        self._left_waits_ns = 0  # how long its thread had waited by then
        self._left_thread = 0  # that thread
        self._turns = 0  # how often it took its turn from another loop of the thread; no longer counted at the end
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
        thread, others_ns = threading.get_ident(), 0
        if thread == self._left_thread:  # a wait for another client is no computing
            others_ns = max(0, _thread.waits_ns - self._left_waits_ns)
        step = self._attachment.step()
        _thread.waits_ns += max(0, step.wait_ns)
        self._compare_start()
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
        self._left_ns, self._left_waits_ns, self._left_thread = time.monotonic_ns(), _thread.waits_ns, thread
        if self._timeline is not None and self._timeline.step(step, asked_ns, self._left_ns, left_ns):
            self.end_timeline()
        return batch, session, Handed(step.line, totals)

    def _compare_start(self) -> None:
        """Warns once if it is read side by side with a loop that would have the same samples, but began elsewhere."""
        other = _thread.latest() if _thread.latest is not None else None
        _thread.latest = weakref.ref(self)
        if self._turns >= _SIDE_BY_SIDE:
            return
        if other is None or other is self:
            self._turns = 0  # an evaluation between epochs takes single turns
            return
        self._turns += 1
        mine, theirs = self._attachment, other._attachment
        if self._turns == _SIDE_BY_SIDE and mine.began != theirs.began and mine.spec.has_order_of(theirs.spec):
            other._turns = _SIDE_BY_SIDE  # it need not say so, too
            log.warning(
                "two clients of %s are read side by side and began at different positions, %d and %d: their batches "
                "hold different samples. With joining=Joining(start='first') both begin with the first sample",
                mine.spec.source.location, mine.began, theirs.began,
            )  # fmt: skip

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

    def progress(self, begin: Callable[[], Iterator[Any]], epochs: int) -> Iterator[Any]:
        """Yields all batches of some epochs, which `begin` begins, and shows a bar; see `PrepClient.progress`."""
        started_s, had = time.monotonic(), self.totals
        # In a notebook, rich would draw with ipywidgets, or nothing without them, and would take over stdout: what a
        # loop prints without a newline then recurses until Python gives up. So there the bar is text, as tqdm's.
        in_notebook = Console().is_jupyter
        console = Console(stderr=True, force_jupyter=False, force_terminal=in_notebook or None)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                   TextColumn("{task.fields[speed]}"))  # fmt: skip
        with Progress(
            *columns, console=console, redirect_stdout=not in_notebook, redirect_stderr=not in_notebook,
            refresh_per_second=2 if in_notebook else 10,
        ) as bar:  # fmt: skip
            task = bar.add_task("", total=None, speed="")
            for number in range(1, epochs + 1):
                batches: Any = begin()
                if number == 1:  # may be the rest of an epoch, and only this one has replays for `headspace`
                    assert self._attachment.session is not None
                    later = (epochs - 1) * self._attachment.session.line.batches_per_epoch
                    bar.update(task, total=len(batches) + later)
                bar.update(task, description=f"epoch {number}/{epochs}")
                for batch in batches:
                    yield batch
                    del batch  # frees its memory for the next one
                    now = self.totals
                    images_per_s = (now.images - had.images) / max(time.monotonic() - started_s, 1e-9)
                    loop_ns = now.wait_ns + now.copy_ns + now.own_ns
                    waits = 100 * now.wait_ns / loop_ns if loop_ns else 0.0
                    bar.update(task, advance=1, speed=f"{images_per_s:.0f} images/s, waits {waits:.0f} %")

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
