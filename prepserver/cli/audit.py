"""``prepserver audit``: proves from a job's log that it got each sample of an epoch exactly once, or names the rest."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver.audit.proof import Account
from prepserver.audit.records import Rows
from prepserver.audit.training import Training, judged
from prepserver.cli import exits
from prepserver.cli.joblog import JobLog, open_log
from prepserver.cli.table import print_json
from prepserver.pipeline.sources import location_of, source_from_wire
from prepserver.telemetry.logs import counted

_NAMED, _NAMED_JSON = 20, 10_000
"""The text and the JSON name at most this many missing, repeated and replaced samples each."""

_SAID = {
    "no": "NOT proven",
    "in part": "exactly once, according to this log",
    "so far": "exactly once so far",
    "yes": "exactly once",
    "nothing": "no batch in the log: the job took none, or the log could not be written",
}
"""Text for a training by the verdict on its weakest epoch, the weakest verdict first."""


def audit(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    found = open_log(arguments)
    verdict = judge(found, arguments.epoch)
    if arguments.epoch is not None and not any(each["epochs"] for each in verdict["trainings"]):
        known = sorted({parts[0].number for each in found.trainings for parts in each.epochs})
        raise exits.CommandError(
            f"--epoch {arguments.epoch}: the log has epochs {', '.join(map(str, known)) or '(none)'}"
        )
    if arguments.json:
        print_json(verdict)
    else:
        _show(verdict)
    return exits.OK if verdict["exactly_once"] else exits.FAILED


def judge(found: JobLog, only_epoch: int | None = None) -> dict[str, Any]:
    """The verdict on a job as plain data: on all trainings under its name, oldest first, or on one epoch of them.

    The verdict on an epoch is "yes", "so far" (unfinished), "in part" (this log shows no error, but a checkpoint says
    that samples were taken outside of it, which only other daemons' logs can prove) or "no". The verdict on a training
    is that on its weakest epoch, or "nothing". `exactly_once` means that none is "no".
    """
    trainings = [_training(training, only_epoch) for training in found.trainings]
    looked_at = [epoch for training in trainings for epoch in training["epochs"]]
    return {
        "job": found.job,
        "uid": found.uid,
        "log": [str(path) for path in found.paths],
        "damage": found.wrong,
        "exactly_once": bool(looked_at) and not found.wrong and all(e["verdict"] != "no" for e in looked_at),
        "trainings": trainings,
    }


def _training(training: Training, only_epoch: int | None) -> dict[str, Any]:
    rows = training.stays[-1].rows
    epochs = training.epochs
    if epochs and not any(part.taken() for part in epochs[-1]):
        epochs.pop()
    last = epochs[-1][0].number if epochs else 0
    names = _Names(rows)
    found = []
    for parts in epochs:
        number = parts[0].number
        if only_epoch is not None and number != only_epoch:
            continue
        more_bad = any(part.more_bad for part in parts)
        found.append({
            "epoch": number, "start": parts[-1].start, **_epoch(judged(parts), more_bad, number == last, names),
            "more_replaced": more_bad, "by_word": sum(part.by_word for part in parts), "again": training.again(number),
        })  # fmt: skip
    return {
        **{name: getattr(rows, name) for name in ("source", "digest", "shuffle", "seed", "num_shards", "shard_index")},
        "samples": rows.n,
        "shards": [[shard.index, shard.count] for shard in training.shards],
        "verdict": _weakest(found),
        "since": training.stays[0].attached.time,
        "attachments": len(training.stays),
        "world_size": training.stays[-1].attached.world_size,
        "epochs": found,
    }


def _weakest(epochs: list[dict[str, Any]]) -> str:
    return min((epoch["verdict"] for epoch in epochs), key=list(_SAID).index, default="nothing")


def _epoch(counted: Account, more_bad: bool, is_last: bool, names: _Names) -> dict[str, Any]:
    if not counted.exact or more_bad or not (counted.whole or is_last):
        verdict = "no"
    elif counted.outside:
        verdict = "in part"
    else:
        verdict = "yes" if counted.whole else "so far"
    found: dict[str, Any] = {
        name: value for name, value in dataclasses.asdict(counted).items() if isinstance(value, int)
    }
    for name in ("missing", "repeated", "replaced"):
        samples = getattr(counted, name)
        found |= {name: [names.of(sample) for sample in samples[:_NAMED_JSON]], f"{name}_count": len(samples)}
    return {"verdict": verdict, **found}


class _Names:
    """Paths of samples; None if the listing no longer exists."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def of(self, sample: int | tuple[int, int, str]) -> dict[str, Any]:
        index, *replaced = (sample,) if isinstance(sample, int) else sample
        name = self._name(index) if self._name is not None else None
        return {"index": index, "path": name, **dict(zip(("position", "reason"), replaced, strict=False))}

    @functools.cached_property
    def _name(self) -> Callable[[int], str] | None:
        from prepserver.source import SourceError, open_source  # rarely needed, and slow to import
        from prepserver.source.errors import printable

        try:
            source = open_source(source_from_wire(self._rows.source), Path(self._rows.index))
        except (SourceError, ValueError, OSError):  # perhaps the cache of another user
            return None
        return lambda index: printable(source.name(index))


def _show(verdict: dict[str, Any]) -> None:
    lines = [f"job {verdict['job']!r} of uid {verdict['uid']}, from {', '.join(verdict['log'])}"]
    lines += [f"the log is damaged: {what}" for what in verdict["damage"]]
    for number, training in enumerate(verdict["trainings"]):
        shards = [f"shard {index} of {count}" if count > 1 else "all" for index, count in training["shards"]]
        part = f"{', '.join(shards)} of " if shards != ["all"] else ""
        lines.append(f"training {number} since {training['since']}: {_SAID[training['verdict']]}")
        lines.append(
            f"  {part}{training['samples']} samples of {location_of(training['source'])}, "
            f"shuffle {training['shuffle']}, seed {training['seed']}, {counted(training['world_size'], 'rank')}, "
            f"{counted(training['attachments'], 'attachment')}"
        )
        for epoch in training["epochs"]:
            lines += _lines(epoch)
    said = _weakest([epoch for training in verdict["trainings"] for epoch in training["epochs"]])
    lines.append(f"verdict: {_SAID['no' if verdict['damage'] else said]}")
    sys.stdout.write("\n".join(lines) + "\n")


def _lines(epoch: dict[str, Any]) -> list[str]:
    words = {
        "yes": "each sample exactly once",
        "so far": "so far each sample at most once",
        "in part": "each sample at most once in this log, which covers only a part",
        "no": "not exactly once",
    }
    counts = [f"{epoch['once']} of {epoch['samples']} once"]
    for key, text in (
        ("missing_count", "missing"), ("repeated_count", "repeated"), ("replaced_count", "replaced"),
        ("untaken", "not taken"), ("left_out", "left out by drop_last"),
        ("elsewhere", "of ranks or shards at other daemons"),
        ("outside", "taken outside of this log, according to a checkpoint"),
        ("by_word", "reported only by the client"), ("again", "taken again"),
    ):  # fmt: skip
        if epoch[key]:
            counts.append(f"{epoch[key]} {text}")
    lines = [f"  epoch {epoch['epoch']}: {words[epoch['verdict']]} ({', '.join(counts)})"]
    for key in ("missing", "repeated", "replaced"):
        for sample in epoch[key][:_NAMED]:
            why = f": {sample['reason']}" if "reason" in sample else f" {sample['path'] or ''}"
            lines.append(f"    {key}: sample {sample['index']}{why}".rstrip())
        if epoch[f"{key}_count"] > _NAMED:
            lines.append(f"    {key}: {epoch[f'{key}_count'] - _NAMED} more; --json names them")
    return lines
