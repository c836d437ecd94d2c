"""Finds the log of a job that a command names."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from prepserver.audit import logfile
from prepserver.audit.stays import chains
from prepserver.audit.training import Training
from prepserver.cli import exits
from prepserver.cli.state import find_state_dir

_JOBS_NAMED = 10


class NoLog(RuntimeError):
    """There is none; the text says why, `code` is the exit code that goes with it."""

    def __init__(self, text: str, code: int = exits.FAILED) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class JobLog:
    """A job's log.

    Attributes:
        job: Its name.
        uid: Whose.
        state_dir: Where it was found.
        paths: Its files.
        wrong: What is wrong with them.
        trainings: Of that name, in the order in which they began: other rows, at the same time, or begun anew.
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
        NoLog: There is none, or it cannot be read.
    """
    state_dir = find_state_dir(arguments)
    folder = state_dir / logfile.FOLDER
    try:
        known = logfile.jobs(folder)
        uids = [job.uid for job in known if job.job == arguments.job]
        if not uids:
            # the first line may be what is damaged
            uids = [uid for uid in (os.getuid(),) if logfile.path_of(folder, arguments.job, uid).exists()]
        if not uids:
            names = ", ".join(repr(job.job) for job in known[:_JOBS_NAMED])
            raise NoLog(f"no job {arguments.job!r} has a log in {folder}; there are {names or 'none at all'}")
        uid = os.getuid() if os.getuid() in uids else uids[0]
        found = logfile.read(folder, arguments.job, uid)
    except PermissionError as e:
        raise NoLog(f"{e.filename}: only the daemon's own user may read it", exits.NO_PERMISSION) from e
    except OSError as e:
        raise NoLog(f"{folder}: {e.strerror}") from e
    stays, wrong = chains(found.records)
    trainings = [Training(chain) for chain in stays]
    return JobLog(arguments.job, uid, state_dir, found.paths, [*found.wrong, *wrong], trainings)
