"""``prepserver quarantine``: lists and clears quarantined samples, which are files: it needs no daemon."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from rich.table import Table
from rich.text import Text

from prepserver.cli.exits import FAILED, NO_PERMISSION, OK, CommandError
from prepserver.cli.state import find_state_dir
from prepserver.cli.table import console, print_json
from prepserver.daemon.quarantine import FOLDER, clear, entries


def _show(arguments: argparse.Namespace) -> int:
    folder = find_state_dir(arguments, must_answer=True) / FOLDER
    kept = entries(folder)
    if arguments.json:
        print_json([dataclasses.asdict(entry) for entry in kept])
        return OK
    sys.stderr.write(f"{'quarantined samples' if kept else 'no sample is quarantined'} in {folder}\n")
    if not kept:
        return OK
    listed = Table(box=None, pad_edge=False)
    for column in ("sample", "path", "dataset", "pipeline", "since", "reason"):
        listed.add_column(column, overflow="fold")  # so that a path can be copied
    for entry in kept:
        # `Text`, so that brackets in a path are not markup.
        pipeline = f"{entry.pipeline[:12]} ({entry.ops})" if entry.pipeline else "all"
        cells = (str(entry.index), entry.path or "-", entry.dataset, pipeline, entry.time, entry.reason)
        listed.add_row(*map(Text, cells))
    console().print(listed)
    return OK


def quarantine(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if not arguments.clear and not arguments.clear_all:
        return _show(arguments)
    folder = find_state_dir(arguments, to_change=True) / FOLDER
    kept = entries(folder)
    chosen = kept if arguments.clear_all else [e for e in kept if {e.path, str(e.index)} & {*arguments.clear}]
    if not chosen and arguments.clear_all:
        sys.stderr.write(f"no sample is quarantined in {folder}\n")
    elif not chosen:
        raise CommandError(
            f"--clear {' '.join(arguments.clear)}: not quarantined in {folder}; `prepserver quarantine` lists the "
            "samples that are"
        )
    try:
        clear(folder, chosen)
    except OSError as e:
        raise CommandError(e, NO_PERMISSION if isinstance(e, PermissionError) else FAILED) from e
    for entry in chosen:
        pipeline = f" for pipeline {entry.pipeline[:12]}" if entry.pipeline else ""
        sys.stdout.write(f"cleared: sample {entry.index} {entry.path}{pipeline} in {folder}\n")
    return OK
