"""``prepserver audit``: proves from a job's log that it got each sample of an epoch exactly once, or says what not."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from prepserver.audit.history import Epoch, History
from prepserver.audit.proof import Account, account
from prepserver.cli import exits
from prepserver.cli.joblog import JobLog, NoLog, open_log
from prepserver.order import make_order
from prepserver.pipeline.sources import source_from_wire

_NAMED = 20  # samples that are named in the text
_NAMED_JSON = 10_000


def audit(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        found = open_log(arguments)
    except NoLog as e:
        sys.stderr.write(f"prepserver audit: {e}\n")
        return e.code
    verdict = judge(found, arguments.epoch)
    if arguments.json:
        sys.stdout.write(json.dumps(verdict, indent=2) + "\n")
    else:
        _show(verdict)
    return exits.OK if verdict["exactly_once"] else exits.FAILED


def judge(found: JobLog, only_epoch: int | None = None) -> dict[str, Any]:
    """The verdict on a job, as plain data.

    Args:
        found: Its log.
        only_epoch: Number of the one epoch to look at; None for all.
    """
    trainings = [_training(history, only_epoch) for history in found.histories]
    looked_at = [epoch for training in trainings for epoch in training["epochs"]]
    return {
        "job": found.job,
        "uid": found.uid,
        "log": [str(path) for path in found.paths],
        "damage": found.wrong,
        "exactly_once": bool(looked_at) and not found.wrong and all(e["verdict"] != "no" for e in looked_at),
        "trainings": trainings,
    }


def _training(history: History, only_epoch: int | None) -> dict[str, Any]:
    rows = history.rows
    order = make_order(rows.shuffle, rows.n, rows.seed, rows.shard, rows.batch_rows)
    epochs = [e for e in history.epochs if e.taken() or e is not history.epochs[-1]]
    last = epochs[-1].number if epochs else 0
    names = _Names(rows.source, rows.index)
    found = []
    for epoch in epochs:
        if only_epoch is not None and epoch.number != only_epoch:
            continue
        counted = account(
            order, epoch.start, epoch.taken(), untaken=epoch.untaken(), left_out=epoch.left_out(),
            elsewhere=epoch.elsewhere(), lost=epoch.lost(), replaced=epoch.replaced(),
        )  # fmt: skip
        found.append(_epoch(epoch, counted, epoch.number == last, names))
    return {
        "source": rows.source,
        "digest": rows.digest,
        "samples": rows.n,
        "shuffle": rows.shuffle,
        "seed": rows.seed,
        "num_shards": rows.num_shards,
        "shard_index": rows.shard_index,
        "since": history.stays[0].attached.time,
        "attachments": len(history.stays),
        "world_size": history.stays[-1].attached.world_size,
        "epochs": found,
    }


def _epoch(epoch: Epoch, counted: Account, is_last: bool, names: _Names) -> dict[str, Any]:
    if not counted.exact or epoch.more_bad or not (counted.whole or is_last):
        verdict = "no"
    else:
        verdict = "yes" if counted.whole else "so far"
    return {
        "epoch": epoch.number,
        "start": epoch.start,
        "verdict": verdict,
        **{name: value for name, value in dataclasses.asdict(counted).items() if isinstance(value, int)},
        "missing": [names.of(i) for i in counted.missing[:_NAMED_JSON]],
        "missing_count": len(counted.missing),
        "repeated": [names.of(i) for i in counted.repeated[:_NAMED_JSON]],
        "repeated_count": len(counted.repeated),
        "lost": [names.of(i) for i in counted.lost[:_NAMED_JSON]],
        "lost_count": len(counted.lost),
        "replaced": [
            {**names.of(index), "position": position, "reason": reason}
            for index, position, reason in counted.replaced[:_NAMED_JSON]
        ],
        "replaced_count": len(counted.replaced),
        "more_replaced": epoch.more_bad,
        "by_word": epoch.by_word,
        "again": epoch.again,
    }


class _Names:
    """Paths of samples, as far as the listing is still there."""

    def __init__(self, source: dict[str, Any], index: str) -> None:
        self._where = (source, index)
        self._source: Any = None
        self._is_open = False

    def of(self, index: int) -> dict[str, Any]:
        if not self._is_open:
            from prepserver.source import SourceError, open_source  # only where there is something to name

            self._is_open = True
            try:
                self._source = open_source(source_from_wire(self._where[0]), Path(self._where[1]))
            except (SourceError, ValueError):
                self._source = None
        return {"index": index, "path": self._source.name(index) if self._source is not None else None}


def _show(verdict: dict[str, Any]) -> None:
    lines = [f"job {verdict['job']!r} of uid {verdict['uid']}, from {', '.join(verdict['log'])}"]
    lines += [f"the log is damaged: {what}" for what in verdict["damage"]]
    for training in verdict["trainings"]:
        where = training["source"].get("root") or training["source"].get("path") or training["source"].get("source")
        part = f"shard {training['shard_index']} of {training['num_shards']} of " if training["num_shards"] > 1 else ""
        lines.append(
            f"{part}{training['samples']} samples of {where}, shuffle {training['shuffle']}, seed {training['seed']}, "
            f"{training['world_size']} ranks, {training['attachments']} attachments since {training['since']}"
        )
        for epoch in training["epochs"]:
            lines += _lines(epoch)
    said = "exactly once" if verdict["exactly_once"] else "NOT proven"
    if not any(training["epochs"] for training in verdict["trainings"]):
        said = "nothing was delivered"
    sys.stdout.write("\n".join([*lines, f"verdict: {said}"]) + "\n")


def _lines(epoch: dict[str, Any]) -> list[str]:
    words = {"yes": "each sample exactly once", "so far": "so far each at most once", "no": "not exactly once"}
    counts = [f"{epoch['once']} of {epoch['samples']} once"]
    for key, text in (
        ("missing_count", "missing"), ("repeated_count", "repeated"), ("replaced_count", "replaced"),
        ("lost_count", "lost by being slow"), ("untaken", "not taken"), ("left_out", "left out by drop_last"),
        ("elsewhere", "of ranks at other daemons"), ("by_word", "by the client's word"), ("again", "taken again"),
    ):  # fmt: skip
        if epoch[key]:
            counts.append(f"{epoch[key]} {text}")
    lines = [f"  epoch {epoch['epoch']}: {words[epoch['verdict']]} ({', '.join(counts)})"]
    for key in ("missing", "repeated", "lost", "replaced"):
        for sample in epoch[key][:_NAMED]:
            why = f": {sample['reason']}" if "reason" in sample else f" {sample['path'] or ''}"
            lines.append(f"    {key}: sample {sample['index']}{why}".rstrip())
        if epoch[f"{key}_count"] > _NAMED:
            lines.append(f"    {key}: {epoch[f'{key}_count'] - _NAMED} more; --json names them")
    return lines
