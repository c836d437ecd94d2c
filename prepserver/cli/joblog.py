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
    """A job's log."""

    job: str
    uid: int
    state_dir: Path  # the directory where it was found
    paths: list[Path]
    wrong: list[str]  # damage, one sentence each
    # All trainings under that name, oldest first: they read different rows, ran at the same time, or were restarted.
    trainings: list[Training]

    def begun(self) -> list[Training]:
        """The trainings.

        Raises:
            CommandError: There are none, as where a daemon was killed before it logged the first.
        """
        if not self.trainings:
            raise CommandError(f"the log of job {self.job!r} ({self.paths[-1]}) holds no training")
        return self.trainings


def open_log(arguments: argparse.Namespace) -> JobLog:
    """The log of ``arguments.job``.

    Raises:
        CommandError: It does not exist, or cannot be read.
    """
    try:
        folder, uid = find_log(arguments, arguments.job)
        found = logfile.read(folder, arguments.job, uid)
    except PermissionError as e:
        raise CommandError(f"{e.filename}: only the daemon's own user may read it", NO_PERMISSION) from e
    except OSError as e:
        raise CommandError(f"the log of job {arguments.job!r}: {e.strerror}") from e
    stays, wrong = chains(found.records)
    trainings = [Training(chain) for chain in stays]
    return JobLog(arguments.job, uid, folder.parent, found.paths, [*found.wrong, *wrong], trainings)


def find_log(arguments: argparse.Namespace, job: str) -> tuple[Path, int]:
    """The folder of the logs, and the uid of the job with that name: this user's, if several users have one.

    Raises:
        CommandError: That job has no log.
        OSError: The folder cannot be read.
    """
    folder = find_state_dir(arguments) / logfile.FOLDER
    known = logfile.jobs(folder)
    uids = [each.uid for each in known if each.job == job]
    if not uids and logfile.path_of(folder, job, os.getuid()).exists():
        uids = [os.getuid()]  # the first line of its log, which names it, may be damaged
    if not uids:
        names = ", ".join(repr(each.job) for each in known[:_JOBS_NAMED])
        raise CommandError(f"no log of job {job!r} in {folder}; jobs with a log: {names or 'none'}")
    return folder, os.getuid() if os.getuid() in uids else uids[0]
