"""The command line: ``prepserver start | status | stop | quarantine | audit | replay | pack | demo | completion``.

Data goes to stdout, everything else to stderr. Each command imports what it needs when it runs: asking a
daemon for its state must not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from prepserver import __version__
from prepserver.cli import exits
from prepserver.pack.command import add_parser as add_pack

_RUNTIME_DIR_HELP = (
    "where the sockets are (default: $PREPSERVER_RUNTIME_DIR, else $XDG_RUNTIME_DIR/prepserver, else /run/prepserver, "
    "else a directory of yours under /tmp)"
)


_CACHE_DIR_HELP = (
    "the daemon's --cache-dir (default: what the running daemon says, else $STATE_DIRECTORY, else the user's cache)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        The exit code; see `prepserver.cli.exits`.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of stdout has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prepserver",
        description="A preprocessing daemon: its workers decode and augment images straight into shared memory, "
        "and all training jobs of the machine that ask for the same data share one pass.",
        epilog=exits.EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"prepserver {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_start(commands)
    _add_status(commands)
    _add_stop(commands)
    _add_quarantine(commands)
    _add_audit(commands)
    _add_replay(commands)
    add_pack(commands)
    _add_demo(commands)
    _add_completion(commands)
    return parser


def _add_start(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "start",
        help="run the daemon",
        description="Runs the daemon in the foreground and logs to stderr. SIGTERM or Ctrl-C lets jobs finish for "
        "drain_s seconds (default 5), then ends everything within 3 s more; a second signal skips the wait.",
        epilog="Settings come from the command line, then --config, then defaults. The file is TOML with workers, "
        "memory, runtime_dir, cache_dir, log_level, chunk_rows, sample_timeout_s, drain_s, nice, sandbox, "
        "socket_group, socket_mode, [sources] roots, [plugins] load and read, and [limits] "
        "memory_per_uid, jobs_per_uid, streams_per_uid. SIGHUP reads it again. " + exits.EPILOG,
    )
    p.add_argument("--workers", metavar="N|auto", help="worker processes (default auto: usable CPUs, less one)")
    p.add_argument(
        "--memory",
        metavar="SIZE|auto",
        help="budget for all rings together, such as 8G (default auto: half of what is free)",
    )
    p.add_argument("--runtime-dir", metavar="DIR", help=_RUNTIME_DIR_HELP)
    p.add_argument("--cache-dir", metavar="DIR", help="where listings of datasets are kept (default: the user's cache)")
    p.add_argument(
        "--root",
        metavar="DIR",
        action="append",
        dest="roots",
        help="a folder below which datasets are read for users other than the daemon's own and root; repeatable. "
        "Without any, those users get synthetic data only",
    )
    _add_plugin(
        p,
        "load ops and sources of your own: an entry point of prepserver.ops or prepserver.sources, a module, or "
        "module:object; repeatable",
    )
    p.add_argument(
        "--plugin-read",
        metavar="DIR",
        action="append",
        help="a folder that plug-ins may read; repeatable (default none)",
    )
    p.add_argument("--config", metavar="FILE.toml", type=Path, help="settings from a file")
    p.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default info")
    p.add_argument("--foreground", action="store_true", help="stay in the foreground; the default, for unit files")
    p.add_argument("-d", "--daemon", action="store_true", help="detach; returns when the daemon is ready")
    p.add_argument("--lifeline", metavar="PID", type=int, help=argparse.SUPPRESS)  # ends with this process
    p.set_defaults(run=_start)


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "status",
        help="what the daemon does",
        description="Workers, jobs (where each stands in its epoch, its images/s, how much of its time it waits and "
        "for what), streams and lanes with their sharing factor (rows delivered per row made), memory, GPUs where "
        "there is a driver. Rates and shares are of the last ten seconds. A job waits for the workers, another job (by "
        "its id), ranks of its own that have not come, a stream that it is to join, or the place at which it begins.",
        epilog=exits.EPILOG,
    )
    p.add_argument("--runtime-dir", metavar="DIR", help=_RUNTIME_DIR_HELP)
    p.add_argument("--json", action="store_true", help="everything, for machines")
    p.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        const=2.0,
        type=_seconds,
        help="show it again every SECONDS (default 2) until Ctrl-C; with --json one line each time",
    )
    p.add_argument(
        "--quarantine",
        action="store_true",
        help="instead: the samples that are not tried any more, because workers died on them; no daemon need run",
    )
    p.add_argument("--cache-dir", metavar="DIR", help=f"with --quarantine: {_CACHE_DIR_HELP}")
    p.set_defaults(run=_status)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0.1 to 86400")
    return value


def _add_stop(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "stop",
        help="end the daemon",
        description="Asks the daemon to end and waits until it has: jobs may finish for its drain_s first.",
        epilog=exits.EPILOG,
    )
    p.add_argument("--runtime-dir", metavar="DIR", help=_RUNTIME_DIR_HELP)
    p.set_defaults(run=_stop)


def _add_quarantine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "quarantine",
        help="samples that are not tried any more",
        description="Lists the samples on which workers died, or clears them. A cleared sample is tried again by the "
        "next job that opens its dataset while no other reads it. No daemon need run.",
        epilog=exits.EPILOG,
    )
    p.add_argument("--clear", metavar="PATH|INDEX", action="append", help="forget this sample; repeatable")
    p.add_argument("--clear-all", action="store_true", help="forget all of them")
    p.add_argument("--json", action="store_true", help="the list, for machines")
    _add_places(p)
    p.set_defaults(run=_quarantine)


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "audit",
        help="prove that a job got each sample exactly once",
        description="Proves from the log that the daemon keeps of a job that it got each sample of an epoch exactly "
        "once, or names those that it did not, while the job runs and after. A script that is started anew under the "
        "same name is another training, as is one that reads another dataset. Ends with 0 if all epochs of all of them "
        "are right, the last one as far as it has come, and with 1 if not.",
        epilog=exits.EPILOG,
    )
    p.add_argument("job", metavar="JOB", help="the name that the client gave with job=, as `prepserver status` shows")
    p.add_argument("--epoch", metavar="N", type=int, help="only this epoch (default all)")
    p.add_argument("--json", action="store_true", help="everything, for machines")
    _add_places(p)
    p.set_defaults(run=_audit)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "replay",
        help="make one input of a job again",
        description="Makes the very row again that a job was given: from its log, without a daemon. Prints the "
        "sample's index, path and label, and the row's position, pass and epoch.",
        epilog=exits.EPILOG,
    )
    p.add_argument("--job", metavar="JOB", required=True, help="as for audit")
    p.add_argument("--batch", metavar="B", type=int, required=True, help="number of the batch in its epoch, from 0")
    p.add_argument("--row", metavar="R", type=int, default=0, help="in the batch, from 0 (default 0)")
    p.add_argument("--field", metavar="NAME", help="of several columns, such as mask (default: the source's first)")
    p.add_argument(
        "--view", metavar="V", type=int,
        help="of a job with several views of each sample, from 0 (default: all, side by side in a picture)",
    )  # fmt: skip
    p.add_argument("--rank", metavar="R", type=int, default=0, help="default 0")
    p.add_argument("--epoch", metavar="N", type=int, help="default: the first in the log")
    p.add_argument(
        "--training", metavar="N", type=int,
        help="where `prepserver audit` lists several: which (default: the last that reads what the first does)",
    )  # fmt: skip
    p.add_argument(
        "-o", metavar="FILE", dest="output", type=Path, required=True,
        help=".png: a picture, normalisation undone; .npy: the row as it is stored",
    )  # fmt: skip
    _add_plugin(p, "of the daemon, which the job used; repeatable")
    _add_places(p)
    p.set_defaults(run=_replay)


def _add_plugin(p: argparse.ArgumentParser, what: str) -> None:
    p.add_argument("--plugin", metavar="NAME", action="append", dest="plugins", help=what)


def _add_places(p: argparse.ArgumentParser) -> None:
    p.add_argument("--cache-dir", metavar="DIR", help=_CACHE_DIR_HELP)
    p.add_argument("--runtime-dir", metavar="DIR", help=_RUNTIME_DIR_HELP)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "demo",
        help="see it work, in under 90 seconds",
        description="Runs several real training processes on one shared stream, then each on a DataLoader of its own, "
        "and prints what came of it.",
        epilog=exits.EPILOG,
    )
    p.add_argument("--data", metavar="DIR", help="a folder of class folders of images (default: synthetic photos)")
    p.add_argument("--jobs", metavar="N", type=int, default=3, help="training processes (default 3)")
    p.add_argument("--workers", metavar="N|auto", default="auto", help="worker processes (default auto)")
    p.add_argument("--epochs", metavar="N", type=int, default=1, help="epochs per phase (default 1)")
    p.add_argument("--json", action="store_true", help="the figures, for machines")
    p.set_defaults(run=_demo)


def _add_completion(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "completion",
        help="completion for your shell",
        description="Prints a script that completes commands and options: "
        'source <(prepserver completion bash), in zsh eval "$(prepserver completion zsh)", in fish '
        "prepserver completion fish | source.",
        epilog=exits.EPILOG,
    )
    p.add_argument("shell", choices=("bash", "zsh", "fish"))
    p.set_defaults(run=_completion)


def _start(arguments: argparse.Namespace) -> int:
    from prepserver.cli.start import start

    return start(arguments)


def _status(arguments: argparse.Namespace) -> int:
    if arguments.quarantine:
        from prepserver.cli.quarantine import show

        return show(arguments)
    from prepserver.cli.status import status

    return status(arguments)


def _stop(arguments: argparse.Namespace) -> int:
    from prepserver.cli.stop import stop

    return stop(arguments)


def _quarantine(arguments: argparse.Namespace) -> int:
    from prepserver.cli.quarantine import run

    return run(arguments)


def _audit(arguments: argparse.Namespace) -> int:
    from prepserver.cli.audit import audit

    return audit(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from prepserver.cli.replay import replay

    return replay(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from prepserver.demo import run_demo

    return run_demo(arguments)


def _completion(arguments: argparse.Namespace) -> int:
    from prepserver.cli.completion import script

    sys.stdout.write(script(_parser(), arguments.shell))
    return exits.OK


if __name__ == "__main__":
    sys.exit(main())
