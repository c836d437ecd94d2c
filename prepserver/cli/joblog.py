"""Finds the log of a job that a command names."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from prepserver.audit import logfile
from prepserver.audit.stays import chains
from prepserver.audit.training import Training
from prepserver.cli.exits import NO_PERMISSION, CommandError
from prepserver.cli.state import find_state_dir

_JOBS_NAMED = 10


@dataclass(frozen=True, slots=True)
class JobLog:
    """A job's log.

    Attributes:
        job: Its name.
        uid: The user whose job it is.
        state_dir: The directory where it was found.
        paths: Its files.
        wrong: Damage, one sentence each.
        trainings: All trainings under that name, oldest first: they read other rows, ran at once, or were restarted.
    """

    job: str
    uid: int
    state_dir: Path
    paths: list[Path]
    wrong: list[str]
    trainings: list[Training]


def open_log(arguments: argparse.Namespace) -> JobLog:
    """The log of ``arguments.job``.

    Raises:
        CommandError: There is none, or it cannot be read.
    """
    state_dir = find_state_dir(arguments)
    folder = state_dir / logfile.FOLDER
    try:
        known = logfile.jobs(folder)
        uids = [job.uid for job in known if job.job == arguments.job]
        if not uids:
            # its first line may be damaged
            uids = [uid for uid in (os.getuid(),) if logfile.path_of(folder, arguments.job, uid).exists()]
        if not uids:
            names = ", ".join(repr(job.job) for job in known[:_JOBS_NAMED])
            raise CommandError(f"no job {arguments.job!r} has a log in {folder}; it has logs of {names or 'no job'}")
        uid = os.getuid() if os.getuid() in uids else uids[0]
        found = logfile.read(folder, arguments.job, uid)
    except PermissionError as e:
        raise CommandError(f"{e.filename}: only the daemon's own user may read it", NO_PERMISSION) from e
    except OSError as e:
        raise CommandError(f"{folder}: {e.strerror}") from e
    stays, wrong = chains(found.records)
    trainings = [Training(chain) for chain in stays]
    return JobLog(arguments.job, uid, state_dir, found.paths, [*found.wrong, *wrong], trainings)
