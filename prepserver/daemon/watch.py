"""Computes statistics: counts of workers, streams, ranks and cores, and what seems to limit each job.

It watches no process; `prepserver.daemon.pool` does. `prepserver.telemetry` counts and judges; this module knows where
in the daemon the figures are.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

from prepserver.config import usable_cores
from prepserver.daemon.attachments import Attachment, Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.gpus import Gpus
from prepserver.daemon.ledger import Ledger, utc_s
from prepserver.daemon.pool import WorkerPool
from prepserver.protocol.trace import MOST_CHUNKS, MadeChunk
from prepserver.protocol.work import Filled
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.lag import holding_back
from prepserver.schedule.records import Cursor
from prepserver.schedule.stream import Stream
from prepserver.schedule.workers import Task
from prepserver.telemetry import cores
from prepserver.telemetry.facts import Facts
from prepserver.telemetry.history import Slice
from prepserver.telemetry.page import NO_TASK
from prepserver.telemetry.rates import Key, Rates
from prepserver.telemetry.stages import Stages
from prepserver.telemetry.verdict import judge

_JUDGED_EVERY = 10  # seconds between two verdicts on a job for its report: the time that the figures cover

_SLOWEST = 8  # jobs whose facts decide about the number of workers; more would take much of the daemon's time


class Watch:
    """Statistics of the daemon; see the module.

    Attributes:
        rates: How fast everything has grown over the last ten seconds.
        cores: Cores that the daemon and its workers may use.
    """

    def __init__(
        self, coordinator: Coordinator, pool: WorkerPool, attachments: Attachments, caches: Caches, gpus: Gpus,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        self.coordinator = coordinator
        self.pool = pool
        self.attachments = attachments
        self.caches = caches
        self.gpus = gpus
        self.rates = Rates()
        self.cores = usable_cores()
        self._ledger = ledger
        self._stages = Stages()
        self._chunks: deque[MadeChunk] = deque(maxlen=MOST_CHUNKS)
        self._counted: dict[Key, float] = {}
        self._marked_s = 0.0
        self._marks = 0
        self._waits: Counter[tuple[int, str]] = Counter()  # (cursor, cause) -> ticks at which it waited for this cause

    # -- counting -----------------------------------------------------------------------------------

    def filled(self, task: Task, made: Filled) -> None:
        """Counts a chunk whose rows have been announced."""
        stream, rows, lanes = task.stream, task.chunk.count, task.chunk.lanes
        number, pid = self.pool.who(task.worker)
        times_ns = (made.began_ns, made.at_ns, time.monotonic_ns(), made.read_ns)
        self._chunks.append(MadeChunk(number, pid, stream, task.chunk.position, rows, *times_ns))
        found = self.coordinator.table.streams.get(stream)
        if found is not None and all(lane in found.lanes for lane in lanes):
            self._stages.filled(stream, rows, {lane: found.lanes[lane].pipeline for lane in lanes}, made)

    def tick(self) -> None:
        """Notes what each waiting rank waits for; call it several times a second."""
        for number in self.attachments:
            cursor = self.coordinator.table.cursor(number)
            if cursor.has_released_all:
                cause = waits_for(cursor, self.coordinator.table.stream_of(number), self.coordinator)
                if cause is not None:
                    self._waits[number, cause] += 1

    def mark(self, now_s: float) -> None:
        """Notes all counts; call it about once a second."""
        self.cores = usable_cores()
        counts = self._counts()
        self.rates.mark(now_s, self.coordinator.rows_made, counts)
        self._write_down(now_s - self._marked_s, counts)
        self._marked_s, self._counted, self._marks = now_s, counts, self._marks + 1

    def _write_down(self, span_s: float, counts: dict[Key, float]) -> None:
        """Notes for reports what each rank did since the last mark, and for some of them what limits them."""

        def grown(name: str, number: int) -> float:
            return counts[name, number] - self._counted[name, number] if (name, number) in self._counted else 0.0

        at_s = round(utc_s() - span_s, 3)
        busy_s = sum(grown(name, ticket) for name, ticket in counts if name == "busy")
        pool_s = len(self.pool.seats) * span_s
        pool = {"busy": min(busy_s, pool_s), "workers": pool_s}
        for number, attachment in self.attachments.items():
            if ("images", number) not in counts:
                continue
            names = (("wait", "waited"), ("copy", "copied"), ("own", "own"))  # the ledger counts images
            sums = {of: grown(name, number) for of, name in names} | pool
            cursor = self.coordinator.table.cursor(number)
            lane = self.coordinator.table.stream_of(number).lanes[cursor.lane]
            sums |= {"ring": span_s * ring_fill(cursor, lane.rows), "ranks": span_s}
            gpu = self._gpu_busy(attachment.peer.pid)
            if gpu is not None:
                sums |= {"gpu": span_s * gpu, "gpus": span_s}
            verdict = None
            if (number + self._marks) % _JUDGED_EVERY == 0:
                facts = self.facts(attachment)
                verdict = judge(facts).to_plain()
                sums[f"verdict {verdict['verdict']}"] = _JUDGED_EVERY
                row_s = sum(facts.stages.values()) or 1.0
                for name, stage_s in facts.stages.items():
                    sums[f"stage {name}"] = stage_s / row_s * facts.used * _JUDGED_EVERY
            self._ledger.counted(number, Slice(at_s, span_s, sums), verdict)

    def _counts(self) -> dict[Key, float]:
        table = self.coordinator.table
        found = self._stages.counts(table.streams, {lane for s in table.streams.values() for lane in s.lanes})
        found |= {("cores", 0): cores.busy_s(), ("died", 0): float(self.pool.died)}
        now_ns = time.monotonic_ns()
        for seat in self.pool.seats:
            if seat.child is not None:
                stats = seat.child.page.read()
                # The page counts a task when it ends; until then, count the time since it began.
                in_hand_ns = max(0, now_ns - stats.task_ns) if stats.task != NO_TASK else 0
                found["busy", seat.child.ticket] = (stats.read_ns + stats.make_ns + in_hand_ns) / 1e9
                if seat.child.host:
                    found["received", seat.child.ticket] = stats.received_bytes
                    found["held", seat.child.ticket] = stats.held_ns / 1e9
                else:
                    found |= _of_thread(seat.child.ticket, seat.child.pid)
        for number, attachment in self.attachments.items():
            cursor = table.cursor(number)
            if cursor.batches < 2:
                continue  # it had to wait for the first rows of an empty ring, which says nothing about later ones
            found["images", number] = cursor.batches * attachment.attach.batch_size
            found["waited", number] = cursor.wait_ns / 1e9
            found["copied", number] = attachment.copy_ns / 1e9
            found["own", number] = attachment.own_ns / 1e9
            found["rows", number], found["bad", number] = attachment.rows, attachment.bad
            loop = _of_thread(number, attachment.peer.pid)
            found |= {(f"loop {name}", of): value for (name, of), value in loop.items()}
        self._waits = Counter({key: times for key, times in self._waits.items() if key[0] in self.attachments})
        found |= {(f"waits {cause}", number): float(times) for (number, cause), times in self._waits.items()}
        return found

    def chunks_since(self, since_ns: int) -> list[MadeChunk]:
        """The remembered chunks that workers have finished since then."""
        return [chunk for chunk in self._chunks if chunk.ended_ns >= since_ns]

    # -- reading ------------------------------------------------------------------------------------

    @property
    def cores_busy(self) -> float | None:
        """How many of the cores that prepserver may use are busy, with anything."""
        busy = self.rates.per_s(("cores", 0))
        return None if busy is None else round(min(busy, self.cores), 2)

    def stages_of(self, stream: Stream) -> dict[str, float]:
        """Seconds of a worker for a row of a stream, by stage; empty if none was made in the last ten seconds."""
        spent = self.rates.sums(stream.id, "stream ")
        rows = spent.get("rows", 0.0)
        if rows <= 0:
            return {}
        ops: dict[str, float] = {}
        for lane in stream.lanes:
            for name, per_s in self.rates.sums(lane, "lane ").items():
                ops[name] = ops.get(name, 0.0) + per_s
        decode = max(0.0, spent["make"] - sum(ops.values()))
        return {name: per_s / rows for name, per_s in {"read": spent["read"], "decode": decode, **ops}.items()}

    def announce_ms(self, stream: Stream) -> float | None:
        """Mean time from a worker's report of a chunk to the announcement of its rows, in ms."""
        spent = self.rates.sums(stream.id, "stream ")
        chunks = spent.get("chunks", 0.0)
        return round(1e3 * spent["announce"] / chunks, 3) if chunks > 0 else None

    def facts_of_slowest(self) -> list[Facts]:
        """What is known of the jobs that wait most, for rows or for a core; all jobs would take too long."""
        names = ("waited", "loop starved")
        waits = {number: sum(self.rates.per_s((name, number)) or 0.0 for name in names) for number in self.attachments}
        return [self.facts(self.attachments[number]) for number in sorted(waits, key=lambda n: -waits[n])[:_SLOWEST]]

    def facts(self, attachment: Attachment) -> Facts:
        """What is known of a job."""
        number, per_s = attachment.cursor, self.rates.per_s
        stream, cursor = self.coordinator.table.stream_of(number), self.coordinator.table.cursor(number)
        span_s = self.rates.span_s(("images", number))
        if cursor.asked_in_vain:  # it has waited for some seconds, perhaps since it attached
            span_s = max(span_s, time.monotonic() - attachment.since_s)
        waited, copied, own = (per_s((name, number)) or 0.0 for name in ("waited", "copied", "own"))
        whole = waited + copied + own if own > 0 else 1.0  # a client that reports no time of its own
        # Remote workers say nothing about this machine's cores.
        seats = self.pool.local_seats
        tickets = [seat.child.ticket for seat in seats if seat.child is not None]
        spent = self.rates.sums(stream.id, "stream ")
        path, why = self.pool.kernels
        return Facts(
            span_s=span_s,
            batches=cursor.batches,
            images_per_s=per_s(("images", number)) or 0.0,
            waiting=1.0 if cursor.asked_in_vain else min(1.0, waited / whole),
            copying=min(1.0, copied / whole),
            bad=min(1.0, (per_s(("bad", number)) or 0.0) / max(per_s(("rows", number)) or 0.0, 1e-9)),
            in_epochs=1.0 if cursor.asked_in_vain else min(1.0, whole),
            waits_for=self._named(self.rates.sums(number, "waits "), attachment),
            workers=len(seats),
            workers_died=round((per_s(("died", 0), span_s) or 0.0) * min(span_s, self.rates.span_s(("died", 0)))),
            workers_busy=self._mean("busy", tickets, span_s),
            workers_run=self._mean("ran", tickets, span_s),
            workers_starved=self._mean("starved", tickets, span_s),
            used=spent.get("read", 0.0) + spent.get("make", 0.0),
            stages=self.stages_of(stream),
            cores=self.cores,
            cores_idle=max(0.0, self.cores - (per_s(("cores", 0), span_s) or 0.0)),
            loop_starved=per_s(("loop starved", number)) or 0.0,
            gpu_busy=self._gpu_busy(attachment.peer.pid),
            ring_rows=stream.lanes[cursor.lane].rows,
            round_rows=cursor.round_rows,
            pure_kernels=why if path == "pure" else "",
            cache=attachment.attach.cache,
            remedies=attachment.remedies,
            reads_plugin=stream.spec.source.get("source") == "Plugin",
            full_cache=self.caches.full_of(stream.spec.listing),
        )

    def _mean(self, name: str, tickets: list[int], span_s: float) -> float:
        total = sum(self.rates.per_s((name, ticket), span_s) or 0.0 for ticket in tickets)
        return min(1.0, total / len(tickets)) if tickets else 0.0

    def _named(self, waits: dict[str, float], waiting: Attachment) -> dict[str, float]:
        """Replaces the numbers of jobs by names; a job with the name of the waiting one keeps its number, too."""
        found: dict[str, float] = {}
        for cause, times in waits.items():
            if cause.startswith("job ") and (slow := self.attachments.get(int(cause[4:]))) is not None:
                cause = f"job {slow.attach.job}" + f" (id {slow.cursor})" * (slow.attach.job == waiting.attach.job)
                cause += f" of uid {slow.peer.uid}" * (slow.peer.uid != waiting.peer.uid)
            if times > 0:
                found[cause] = found.get(cause, 0.0) + times
        return found

    def _gpu_busy(self, pid: int) -> float | None:
        found: list[Any] = [gpu["utilisation_percent"] for gpu in self.gpus.last or [] if pid in gpu["pids"]]
        known = [percent for percent in found if percent is not None]
        return sum(known) / len(known) / 100 if known else None


def _of_thread(number: int, pid: int | None) -> dict[Key, float]:
    times = cores.ran_and_waited_s(pid) if pid is not None else None
    return {} if times is None else {("ran", number): times[0], ("starved", number): times[1]}


def ring_fill(cursor: Cursor, rows: int) -> float:
    """How full a ring of `rows` rows is for a rank, 0 to 1; unread rows of an earlier ring count, too."""
    return min(1.0, max(0, cursor.announced - cursor.released) / rows)


def waits_for(cursor: Cursor, stream: Stream, coordinator: Coordinator) -> str | None:
    """What a rank waits for now; None if it has rows to read.

    ``workers``, ``job ID`` (its unreleased rows fill the ring), ``ranks`` (those of its own job do, or their places if
    they have not attached yet), ``stream ID`` (which is not yet where it will share it) or ``start`` (the stream is not
    yet at its start position).
    """
    if not cursor.has_released_all:
        return None
    if stream.cap is not None and stream.head >= stream.cap and stream.id in coordinator.waits_for:
        return f"stream {coordinator.waits_for[stream.id]}"
    # Between a rank's batches lie those of the others, which may be missing.
    if cursor.first_needed - stream.head > cursor.round_rows - cursor.line.full_epoch.batch_size:
        return "start"
    present = {c.job: c.id for c in stream.cursors.values() if c.present}
    for slow, others in holding_back(stream, coordinator.chunk_rows, is_still=False):
        if cursor in others:
            return f"job {present.get(slow.job, slow.id)}"
    is_behind = any(
        c.job == cursor.job and c.first_needed == stream.low and not c.has_released_all for c in stream.cursors.values()
    )
    return (
        "ranks" if is_behind and stream.limit - stream.head < stream.chunk_rows(coordinator.chunk_rows) else "workers"
    )
