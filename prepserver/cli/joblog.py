"""Finds the log of a job that a command names."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prepserver.audit import logfile
from prepserver.audit.stays import chains
from prepserver.audit.training import Training
from prepserver.cli.ask import AskError, ask
from prepserver.cli.exits import NO_PERMISSION, CommandError
from prepserver.cli.state import find_state_dir
from prepserver.protocol.messages import AskLogs

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


class Place(NamedTuple):
    """Where the files about a job are."""

    folder: Path  # perhaps a copy
    uid: int  # the job's user
    origin: Path  # the daemon's folder


def open_log(arguments: argparse.Namespace, *, may_ask: bool = True) -> JobLog:
    """The log of ``arguments.job``; `may_ask` as for `find_log`.

    Raises:
        CommandError: It does not exist, or cannot be read.
    """
    try:
        folder, uid, origin = find_log(arguments, arguments.job, may_ask=may_ask)
        found = logfile.read(folder, arguments.job, uid)
    except PermissionError as e:
        raise CommandError(f"{e.filename}: only the daemon's own user may read it", NO_PERMISSION) from e
    except OSError as e:
        raise CommandError(f"the log of job {arguments.job!r}: {e.strerror}") from e
    stays, wrong = chains(found.records)
    trainings = [Training(chain) for chain in stays]
    paths = [origin / path.name for path in found.paths]
    return JobLog(arguments.job, uid, origin.parent, paths, [*found.wrong, *wrong], trainings)


def find_log(arguments: argparse.Namespace, job: str, *, may_ask: bool = True) -> Place:
    """Where the log of the job with that name is: of this user's, if several users have one.

    The folder of a daemon for several users is shut to them; if `may_ask`, such a daemon gives a copy.

    Raises:
        CommandError: That job has no log.
        OSError: The folder cannot be read.
    """
    folder = find_state_dir(arguments) / logfile.FOLDER
    if may_ask and arguments.cache_dir is None and _is_shut(folder):
        return Place(_copy(arguments, job, folder), os.getuid(), folder)
    known = logfile.jobs(folder)
    uids = [each.uid for each in known if each.job == job]
    if not uids and logfile.path_of(folder, job, os.getuid()).exists():
        uids = [os.getuid()]  # the first line of its log, which names it, may be damaged
    if not uids:
        names = ", ".join(repr(each.job) for each in known[:_JOBS_NAMED])
        raise CommandError(f"no log of job {job!r} in {folder}; jobs with a log: {names or 'none'}")
    return Place(folder, os.getuid() if os.getuid() in uids else uids[0], folder)


def _is_shut(folder: Path) -> bool:
    try:
        os.scandir(folder).close()
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _copy(arguments: argparse.Namespace, job: str, folder: Path) -> Path:
    try:
        files, _ = ask(arguments.runtime_dir, AskLogs(job))
    except AskError as e:
        raise CommandError(f"{folder}: only the daemon's own user may read it. {e}", NO_PERMISSION) from e
    copy = Path(tempfile.mkdtemp(prefix="prepserver-logs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for name, data in files.items():
        (copy / os.path.basename(name)).write_bytes(data)
    return copy
