"""``prepserver replay``: remakes one row of a job, byte for byte, from the job's log."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.audit.history import Epoch
from prepserver.audit.records import Rows
from prepserver.audit.stays import Key, key_of
from prepserver.audit.training import Training
from prepserver.cli.exits import OK, USAGE, CommandError
from prepserver.cli.joblog import open_log
from prepserver.daemon.quarantine import FOLDER, entries
from prepserver.inline import Row, remake
from prepserver.pipeline.kinds import Image, Mask
from prepserver.pipeline.ops import Normalize, ToDtype, ToLayout
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX
from prepserver.pipeline.sources import source_from_wire
from prepserver.pipeline.spec import digest_of
from prepserver.plugins import PluginError, load
from prepserver.source import SourceError


def replay(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.output.suffix not in (".png", ".npy"):
        raise CommandError(
            f"-o {arguments.output}: must end with .png (a picture) or .npy (the row as it is stored)", USAGE
        )
    try:
        load(arguments.plugins or ())
    except PluginError as e:
        raise CommandError(e, USAGE) from e
    found = open_log(arguments, may_ask=False)  # it opens the listing and the quarantine, too
    epoch, position = _place(found.begun(), arguments)
    try:
        rows = epoch.rows
        pipeline = Pipeline.from_wire(rows.pipeline, source_from_wire(rows.source).columns)
        if arguments.view is not None and not 0 <= arguments.view < pipeline.views:
            raise CommandError(f"--view {arguments.view}: the job has views 0 to {pipeline.views - 1} of each sample")
        column = _column(pipeline, arguments)
        kept = [entry for entry in entries(found.state_dir / FOLDER) if entry.source == rows.digest]
        bad = {entry.index for entry in kept if entry.pipeline in ("", pipeline.digest)}
        row = remake(rows, pipeline, position, bad)
    except (SourceError, PluginError, ValueError) as e:
        raise CommandError(e) from e
    try:
        _write(arguments.output, row, pipeline, column, arguments.view)
    except OSError as e:
        raise CommandError(f"-o {arguments.output}: {e.strerror or e}") from e
    scalars = "".join(f"{f.name} {row.fields[f.name]}\n" for f in pipeline.fields if not f.shape and f.name != INDEX)
    sys.stdout.write(
        f"sample {row.index}\npath {row.path}\n{scalars}position {position}\n"
        f"pass {position // rows.positions}\nepoch {epoch.number}\n"
    )
    for what in found.wrong:
        sys.stderr.write(f"prepserver replay: the log is damaged: {what}\n")
    for reason in row.replaced:
        sys.stderr.write(f"prepserver replay: the row holds a replacement, for {reason}\n")
    logged = epoch.bad.get(position)
    if (logged is not None) != bool(row.replaced):
        text = "a replacement, but the sample is readable now" if logged else "the sample itself"
        raise CommandError(f"this row differs from the job's: the job got {text}")
    return OK


def _column(pipeline: Pipeline, arguments: argparse.Namespace) -> str:
    kinds = {field.column: field.kind for field in pipeline.fields if field.column != INDEX}
    if arguments.field is not None and arguments.field not in kinds:
        raise CommandError(f"--field {arguments.field}: a row has the columns {', '.join(kinds)}", USAGE)
    column = arguments.field or next(iter(kinds))
    kind = kinds[column]
    is_picture = isinstance(kind, Mask) or (isinstance(kind, Image) and kind.channels in (1, 3))
    if arguments.output.suffix == ".png" and not is_picture:
        raise CommandError(f"-o {arguments.output}: {column} is not a picture; write it to a .npy file", USAGE)
    return column


def _place(trainings: list[Training], arguments: argparse.Namespace) -> tuple[Epoch, int]:
    """The epoch and the position of the row that the arguments name."""
    keys = [_key(training.stays[0].rows) for training in trainings]
    chosen = len(keys) - 1 - keys[::-1].index(keys[0]) if arguments.training is None else arguments.training
    if not 0 <= chosen < len(trainings):
        raise CommandError(f"--training {chosen}: the log has trainings 0 to {len(trainings) - 1}", USAGE)
    epochs = {parts[0].number: parts for parts in trainings[chosen].epochs}
    number = min(epochs, default=0) if arguments.epoch is None else arguments.epoch
    if number not in epochs:
        raise CommandError(f"--epoch {number}: the log has epochs {', '.join(map(str, epochs)) or '(none)'}")
    parts = [part for part in epochs[number] if arguments.rank < part.plan.world_size]
    if arguments.rank < 0 or not parts:
        most = max(part.plan.world_size for part in epochs[number])
        raise CommandError(f"--rank {arguments.rank}: the job has ranks 0 to {most - 1}")
    batches = [(part, batch) for part in parts for batch in part.batches(arguments.rank)]
    if not 0 <= arguments.batch < len(batches):
        known = f"batches 0 to {len(batches) - 1}" if batches else "no batch"
        raise CommandError(f"--batch {arguments.batch}: epoch {number} has {known} for rank {arguments.rank}")
    epoch, batch = batches[arguments.batch]
    if not 0 <= arguments.row < batch.stop - batch.start:
        raise CommandError(f"--row {arguments.row}: the batch has rows 0 to {batch.stop - batch.start - 1}")
    return epoch, batch.start + arguments.row


def _key(rows: Rows) -> Key:
    """As `key_of`, but the same with other code of the plug-ins, on which the digest of a source depends, too."""
    source, pipeline = _without_code(rows.source), _without_code(rows.pipeline)
    digest = rows.digest if source == rows.source else digest_of(source)
    return key_of(dataclasses.replace(rows, digest=digest, pipeline=pipeline))


def _without_code(wire: Any) -> Any:
    if isinstance(wire, list):
        return [_without_code(each) for each in wire]
    return {k: _without_code(v) for k, v in wire.items() if k != "code"} if isinstance(wire, dict) else wire


def _write(path: Path, row: Row, pipeline: Pipeline, column: str, view: int | None) -> None:
    views = [field for field in pipeline.fields if field.column == column]
    if view is not None and len(views) > 1:
        views = views[view : view + 1]
    rows = [row.fields[field.name] for field in views]
    if path.suffix == ".npy":
        np.save(path, rows[0] if len(rows) == 1 else np.stack(rows))
        return
    from PIL import Image as Picture

    if not isinstance(views[0].kind, Image):
        Picture.fromarray(np.concatenate(rows, axis=1)).save(path)
        return
    seen = np.concatenate([picture(image, pipeline) for image in rows], axis=1)
    Picture.fromarray(seen[..., 0] if seen.shape[-1] == 1 else seen).save(path)


def picture(image: npt.NDArray[Any], pipeline: Pipeline) -> npt.NDArray[np.uint8]:
    """An image as uint8 [H, W, C] to look at: normalisation undone, floats scaled and clipped to 0..255."""
    last = pipeline.ops[-1]
    if image.shape == pipeline.row.shape[-3:] and isinstance(last, ToLayout) and last.layout == "CHW":
        image = image.transpose(1, 2, 0)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    seen = image.astype(np.float64)
    scale = 255.0
    for op in reversed(pipeline.ops):
        if isinstance(op, Normalize):
            seen = seen * np.asarray(op.std) + np.asarray(op.mean)
        elif isinstance(op, ToDtype):
            scale = 255.0 if op.scale else 1.0
    return np.rint(np.clip(seen * scale, 0, 255)).astype(np.uint8)
