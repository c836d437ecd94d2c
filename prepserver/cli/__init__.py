"""The command line: ``prepserver start | status | top | stop | audit | replay | pack | ...``.

Data goes to stdout, everything else to stderr. Each command imports what it needs when it runs, because `status` must
not wait for torch. The module is long because it holds the arguments of all commands, so that no help waits either.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Never, TypeAlias

from prepserver.cli import exits
from prepserver.cli.version import VersionAction
from prepserver.protocol.packed import MAX_SEGMENT_MCUS
from prepserver.telemetry.logs import is_journal

_RUNTIME_DIR_HELP = (
    "folder of the daemon's sockets (default: $PREPSERVER_RUNTIME_DIR, else $XDG_RUNTIME_DIR/prepserver, else "
    "/run/prepserver, else /tmp/prepserver-UID)"
)
_CACHE_DIR_HELP = (
    "the daemon's --cache-dir (default: that of the running daemon, else $STATE_DIRECTORY, else "
    "$XDG_CACHE_HOME/prepserver, else ~/.cache/prepserver)"
)
_JOB_HELP = "name of the job: job= of the client, as `prepserver status` shows it"
_ADDRESS_HELP = "address of the Ray cluster (default auto: the cluster of this machine)"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; see `prepserver.cli.exits`."""
    _open_closed_streams(is_daemon=list(sys.argv[1:] if argv is None else argv)[:1] == ["start"])
    out = _Out.take_stdout()
    command = "prepserver"
    try:
        try:
            arguments = command_line().parse_args(argv)
            command = f"prepserver {arguments.command}"
            module, _, name = arguments.run.partition(":")
            return int(getattr(importlib.import_module(module), name)(arguments))
        finally:
            sys.stdout.flush()
            if out is not None and out.failed is not None:
                raise out.failed  # argparse ignores it
    except exits.CommandError as e:
        sys.stderr.write(f"{'<3>' * is_journal(2)}{command}: {e}\n")  # an error, to systemd's journal
        return e.code
    except KeyboardInterrupt:
        return 130
    except OSError as e:
        if isinstance(e, PermissionError) and e.filename is not None:  # another user's file, such as the daemon's
            sys.stderr.write(f"{command}: {e.filename}: {e.strerror}\n")
            return exits.NO_PERMISSION
        if out is None or e is not out.failed:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if e.errno == errno.EPIPE:  # the process that reads stdout has ended, such as `head`
            return 141
        sys.stderr.write(f"{command}: cannot write its output: {e.strerror}\n")
        return exits.FAILED


class _Out(io.FileIO):
    """stdout that remembers its first write error in `failed`: the exception alone does not name its file."""

    failed: OSError | None = None
    replaced: Any = None  # the old stdout, which owns the descriptor

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as e:
            self.failed = self.failed or e
            raise self.failed from None

    @classmethod
    def take_stdout(cls) -> _Out | None:
        """Replaces `sys.stdout`, unless that is not a file."""
        was = sys.stdout
        if not isinstance(was, io.TextIOWrapper) or not isinstance(was.buffer, io.BufferedWriter | io.FileIO):
            return None
        was.flush()
        out = cls(was.fileno(), "w", closefd=False)
        out.replaced = was
        # "replace": in any locale, a name that it cannot encode is shown with question marks.
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(out), was.encoding, "replace", line_buffering=was.isatty())
        return out


def _open_closed_streams(*, is_daemon: bool) -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that is closed, before a socket gets its number.

    stdout is then read-only, so that a command with output fails. A daemon's is writable: its plug-ins may print.
    """
    out = os.O_WRONLY if is_daemon else os.O_RDONLY
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", out), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, flags)  # the lowest free number, which is that of this stream
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "r" if name == "stdin" else "w", closefd=False))


class _Paragraphs(argparse.HelpFormatter):
    """Keeps the line breaks of descriptions and epilogs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(fill(part, width, indent) for part in text.split("\n"))


class _Parser(argparse.ArgumentParser):
    """Errors of two lines, which name the command and suggest what was meant, in the place of the whole usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what the command does not know: otherwise the error would be that of `prepserver`."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], self._option_string_actions)}")
        return found, unknown

    def error(self, message: str) -> Never:
        """Ends the command; see `prepserver.cli.exits`."""
        choice = re.fullmatch(r"(.*invalid choice: '(.*)') \(choose from (.*)\)", message)
        if choice and (meant := _meant(choice[2], re.findall(r"[\w-]+", choice[3]))):
            message = choice[1] + meant
        self.exit(exits.USAGE, f"{self.prog}: {message}\nTry `{self.prog} --help`.\n")


def _meant(text: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(text.split("=")[0], known, 1, 0.65)
    return f" (did you mean {close[0]}?)" if close else ""


def command_line() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="prepserver",
        description="A data-loading daemon for GPU machines. Its workers read, decode and augment samples straight "
        "into shared memory, and all training jobs on the machine that ask for the same data share one pass.",
        epilog=f"`prepserver COMMAND --help` describes a command and its options.\n\n{exits.EPILOG}",
        formatter_class=_Paragraphs,
    )
    parser.add_argument("--version", action=VersionAction, help="show release, commit, kernels and codecs, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for add in (_add_start, _add_status, _add_top, _add_metrics, _add_doctor, _add_stop, _add_quarantine, _add_audit,
                _add_replay, _add_report, _add_compare, _add_trace, _add_pack, _add_tune, _add_demo,
                _add_completion):  # fmt: skip
        add(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _add(
    commands: _Commands, name: str, run: str, summary: str, description: str, epilog: str = "", *,
    runtime_dir: bool = True, cache_dir: str = "",
) -> argparse.ArgumentParser:  # fmt: skip
    """Adds a command; `run` is its "module:function", imported when it runs, `cache_dir` the help of that option."""
    epilog = f"{epilog}\n\n{exits.EPILOG}".lstrip()
    p = commands.add_parser(name, help=summary, description=description, epilog=epilog, formatter_class=_Paragraphs)
    p.set_defaults(run=run)
    if runtime_dir:
        places = p.add_argument_group("places")  # after the command's own options
        places.add_argument("--runtime-dir", metavar="DIR", type=_folder, help=_RUNTIME_DIR_HELP)
        if cache_dir:
            places.add_argument("--cache-dir", metavar="DIR", type=_folder, help=cache_dir)
    return p


def _folder(text: str) -> str:
    if not text:  # a variable that is not set: the default would be another folder than was meant
        raise argparse.ArgumentTypeError("the name is empty; leave out the option for the default")
    return text


def _add_plugin(p: argparse.ArgumentParser, what: str) -> None:
    p.add_argument("--plugin", metavar="NAME", action="append", dest="plugins", help=what)


def _add_start(commands: _Commands) -> None:
    p = _add(
        commands, "start", "prepserver.cli.start:start", "run the daemon",
        "Runs the daemon in the foreground and logs to stderr. After SIGTERM or Ctrl-C it gives jobs drain_s seconds "
        "(default 5) to finish, then ends all processes within 3 s; a second signal skips the wait.",
        "The command line overrides the --config file. The file is TOML with workers, memory, worker_memory, "
        "runtime_dir, cache_dir, log_level, log_format, chunk_rows, sample_timeout_s, drain_s, nice, sandbox, engine, "
        "socket_group, socket_mode, [sources] roots, [plugins] load and read, [cache] memory, disk and folders, "
        "[limits] memory_per_uid, jobs_per_uid, streams_per_uid, and [ray] address, workers. On SIGHUP the daemon "
        "reads it again.\n\nexample: prepserver start -d --workers 16 --root /data",
        cache_dir="folder for listings of datasets, jobs' logs and the quarantine (default: $STATE_DIRECTORY, else "
        "$XDG_CACHE_HOME/prepserver, else ~/.cache/prepserver)",
    )  # fmt: skip
    p.add_argument(
        "--workers", metavar="N|auto", help="worker processes (default auto: as many as jobs need and cores allow)"
    )
    p.add_argument(
        "--memory", metavar="SIZE|auto", dest="memory_bytes",
        help="budget for all rings together, such as 8G (default auto: half of what is free)",
    )  # fmt: skip
    p.add_argument(
        "--cache-memory", metavar="SIZE|auto", dest="cache_memory_bytes",
        help="budget for all caches in memory, such as 8G (default auto: a quarter of what is free)",
    )  # fmt: skip
    p.add_argument(
        "--cache-folder", metavar="DIR", action="append", dest="cache_folders",
        help="let jobs keep caches on disk below this folder, which must belong to the daemon's user; repeatable "
        "(default: nowhere)",
    )  # fmt: skip
    p.add_argument(
        "--root", metavar="DIR|URL", action="append", dest="source_roots",
        help="let users other than root and the daemon's own read datasets below this folder, and all users below a "
        "URL such as s3://bucket; repeatable (default: nowhere, so that they get synthetic data only)",
    )  # fmt: skip
    _add_plugin(
        p, "load your own ops and sources: an entry point in the group prepserver.ops or prepserver.sources, a "
        "module, or module:object; repeatable",
    )  # fmt: skip
    p.add_argument("--plugin-read", metavar="DIR", action="append", help="let plug-ins read this folder; repeatable")
    p.add_argument(
        "--engine", choices=("local", "ray"),
        help="ray: also run --remote-workers on the machines of a Ray cluster, which need the datasets under the same "
        "paths (default local). Needs pip install 'prepserver[ray]'",
    )  # fmt: skip
    p.add_argument("--address", metavar="HOST:PORT|auto", dest="ray_address", help=_ADDRESS_HELP)
    p.add_argument("--remote-workers", metavar="N", type=int, help="workers on the Ray cluster, one CPU each")
    p.add_argument("--config", metavar="FILE.toml", type=Path, help="file of settings")
    p.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default info")
    p.add_argument("--log-format", choices=("text", "json"), help="json: one object per line (default text)")
    p.add_argument("--foreground", action="store_true", help="do not detach (the default)")
    p.add_argument("--check", action="store_true", help="only check the settings, for example before a reload")
    p.add_argument("-d", "--daemon", action="store_true", help="detach, and return when the daemon is ready")
    p.add_argument(
        "--replace", action="store_true",
        help="replace the running daemon once the new one's workers are up. Jobs pause for a moment and continue with "
        "the same rows. If the new daemon cannot start, the old one keeps running",
    )  # fmt: skip
    p.add_argument("--lifeline", metavar="PID", type=int, help=argparse.SUPPRESS)  # ends with this process


def _add_status(commands: _Commands) -> None:
    p = _add(
        commands, "status", "prepserver.cli.status:status", "show workers, jobs, streams and memory",
        "Shows workers, jobs (epoch, samples/s, the part of their time that they wait, and for what), what limits each "
        "job, streams and lanes with their sharing factor (rows delivered per row made), caches, memory, and GPUs if "
        "there is a driver. Rates and percentages cover the last ten seconds. A job waits for the workers, for another "
        "job (shown by its id), for its own ranks that have not attached or take no batches, for a stream that it "
        "will join, or for its start position.",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="print everything as JSON")


def _add_top(commands: _Commands) -> None:
    p = _add(
        commands, "top", "prepserver.cli.top:top", "watch jobs, workers and GPUs, and what limits each job",
        "Shows jobs (samples/s; wait: the part of their time that they wait for rows; shared: rows delivered per row "
        "made; lag: rows behind the first job of the stream; ring: how full it is; verdict), how the workers spend "
        "their time, GPUs and memory, and refreshes it. Keys: q quits, s sorts by the next column, f freezes and "
        "thaws. Without a terminal it prints once.",
    )  # fmt: skip
    p.add_argument(
        "--every", metavar="SECONDS", type=_within(float, 0.1, 86400), default=1.0, help="refresh interval (default 1)"
    )  # fmt: skip
    p.add_argument("--once", action="store_true", help="print once")
    p.add_argument("--json", action="store_true", help="print the state as in status --json, one line per refresh")


def _add_metrics(commands: _Commands) -> None:
    p = _add(
        commands, "metrics", "prepserver.cli.metrics:metrics", "serve metrics to Prometheus",
        "Serves the figures of `prepserver status` to Prometheus at /metrics, and at /health whether the daemon "
        "answers (200 or 503). It runs as a separate process and asks the daemon at most once a second. Needs "
        "pip install 'prepserver[metrics]'. deploy/ in the source has a systemd unit, a Grafana dashboard and alert "
        "rules.",
    )  # fmt: skip
    p.add_argument(
        "--listen", metavar="HOST:PORT|unix:PATH", default="127.0.0.1:9477",
        help="default 127.0.0.1:9477, which only this machine reaches. Whoever can connect sees the names of all jobs",
    )  # fmt: skip
    p.add_argument("--once", action="store_true", help="print the metrics and exit, for a textfile collector")


def _add_doctor(commands: _Commands) -> None:
    p = _add(
        commands, "doctor", "prepserver.cli.doctor:doctor", "check this machine for what slows prepserver down",
        "Checks memory and its limits, cores, the compiled kernels, the workers' sandbox, open files, the container, "
        "and the GPUs with their NUMA nodes, and measures how fast a core decodes. Each finding is ok, slow or broken, "
        "and says how to fix it. Exits with 1 if one is broken. Needs no daemon.",
    )  # fmt: skip
    p.add_argument(
        "--seconds", metavar="S", type=_within(float, 0.0, 60), default=1.0,
        help="length of each measurement (default 1)",
    )  # fmt: skip
    p.add_argument(
        "--job-rate", metavar="IMAGES_PER_S", type=_within(float, 1.0, 1e7), default=2500.0,
        help="images/s that one training job takes (default 2500: about ResNet-50 in bfloat16 on an A100)",
    )  # fmt: skip
    p.add_argument("--storage", metavar="DIR", help="also measure how fast the files below DIR are read")
    p.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help="ray: also measure the network from each machine of a Ray cluster to this one (default local)",
    )  # fmt: skip
    p.add_argument("--address", metavar="HOST:PORT|auto", default="auto", help=_ADDRESS_HELP)
    p.add_argument("--json", action="store_true", help="print the findings as JSON")


def _within(kind: type[float], low: float, high: float) -> Callable[[str], float]:
    """The type of an argument from `low` to `high`."""

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    parse.__name__ = kind.__name__  # argparse puts it into its errors
    return parse


def _add_stop(commands: _Commands) -> None:
    _add(
        commands, "stop", "prepserver.cli.stop:stop", "stop the daemon",
        "Stops the daemon and waits until it has ended. The daemon first gives jobs drain_s seconds (default 5) to "
        "finish.",
    )  # fmt: skip


def _add_quarantine(commands: _Commands) -> None:
    p = _add(
        commands, "quarantine", "prepserver.cli.quarantine:quarantine", "list or clear samples that killed workers",
        "Lists the samples that are no longer tried because workers died on them, or clears them. A cleared sample is "
        "tried again by the next job that opens its dataset while no other job reads it: jobs that read it now go on "
        "without the sample, and `prepserver status` lists it until they end. Needs no daemon.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("--clear", metavar="PATH|INDEX", action="append", help="try this sample again; repeatable")
    p.add_argument("--clear-all", action="store_true", help="try all of them again")
    p.add_argument("--json", action="store_true", help="print the list as JSON")


def _add_audit(commands: _Commands) -> None:
    p = _add(
        commands, "audit", "prepserver.cli.audit:audit", "prove that a job got each sample exactly once",
        "Reads the log that the daemon keeps of each job, and proves that the job got each sample of an epoch exactly "
        "once, or names the samples that it missed or got twice. Works while the job runs and afterwards. Each start "
        "of a script counts as a separate training, unless it resumes from a checkpoint, and so does each dataset that "
        "it reads. Exits with 0 if every epoch of every training is right (an unfinished epoch: so far), else with 1.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("job", metavar="JOB", help=_JOB_HELP)
    p.add_argument("--epoch", metavar="N", type=int, help="check only this epoch (default all)")
    p.add_argument("--json", action="store_true", help="print everything as JSON")


def _add_replay(commands: _Commands) -> None:
    p = _add(
        commands, "replay", "prepserver.cli.replay:replay", "remake one row of a job",
        "Makes the same row again that a job got, byte for byte, from the job's log and without a daemon. Prints the "
        "sample's index, path and label, and the row's position, pass and epoch.",
        "example: prepserver replay --job resnet --epoch 3 --batch 120 --row 7 -o row.png", cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("--job", metavar="JOB", required=True, help=_JOB_HELP)
    p.add_argument(
        "--batch", metavar="B", type=int, required=True,
        help="number of the batch in its epoch, from 0; counted from the checkpoint if the log begins at one",
    )  # fmt: skip
    p.add_argument("--row", metavar="R", type=int, default=0, help="number of the row in the batch (default 0)")
    p.add_argument("--field", metavar="NAME", help="column to write, such as mask (default: the source's first)")
    p.add_argument(
        "--view", metavar="V", type=int,
        help="number of the view, if each sample has several (default: all, side by side in a .png)",
    )  # fmt: skip
    p.add_argument("--rank", metavar="R", type=int, default=0, help="rank of the batch (default 0)")
    p.add_argument("--epoch", metavar="N", type=int, help="number of the epoch (default: the first in the log)")
    p.add_argument(
        "--training", metavar="N", type=int,
        help="number in `prepserver audit`, if it lists several (default: the last with source and ops of number 0)",
    )  # fmt: skip
    p.add_argument(
        "-o", metavar="FILE", dest="output", type=Path, required=True,
        help=".png: a picture with normalisation undone; .npy: the row as it is stored",
    )  # fmt: skip
    _add_plugin(p, "load a plug-in that the job used; repeatable")


def _add_pack(commands: _Commands) -> None:
    p = _add(
        commands, "pack", "prepserver.cli.pack:pack", "convert a dataset into one that is read faster",
        "Writes the samples of SOURCE, in order, into a few large files in OUT, with their labels, class names and "
        "names. JPEGs get a restart marker every few blocks and an index, so that a worker decodes only what a crop "
        "needs: about 1.2 times the images/s of plain files, with the same pixels and in about the same space. The "
        "compiled kernels convert without loss; without them, Pillow encodes again. Files that cannot be converted "
        '(PNG, CMYK, damaged JPEGs) are kept unchanged and still served. Use the result as Packed("OUT").',
        "If it is interrupted, run the same command again: it continues. A finished dataset is left alone.\n\n"
        "example: prepserver pack /data/imagenet/train /data/imagenet-packed",
        runtime_dir=False,
    )  # fmt: skip
    p.add_argument(
        "source", metavar="SOURCE",
        help="a folder of class folders of images, a list of files ('path label' per line, or a .csv file), "
        "WebDataset shards ('train-{000..127}.tar', with their .cls), or any source as in Python, such as "
        "'HuggingFace(\"/data/food101/train\")'",
    )  # fmt: skip
    p.add_argument("out", metavar="OUT", help="the folder to write: new, empty, or from an earlier run")
    p.add_argument(
        "--masks", metavar="WHERE", nargs="?", const=True,
        help="pack masks too. WHERE is a folder of PNGs laid out as SOURCE or, for shards, the extension of the masks, "
        "such as seg.png; omit it for a list, in which each line names its mask",
    )  # fmt: skip
    _add_plugin(p, "load a plug-in, for 'Plugin(...)' as SOURCE; repeatable")
    p.add_argument("--workers", metavar="N|auto", default="auto", help="processes (default auto: usable CPUs)")
    p.add_argument("--shard-size", metavar="SIZE", default="256M", help="size of each file (default 256M)")
    p.add_argument(
        "--transcoder", choices=("auto", "lossless", "pillow"), default="auto",
        help="lossless: the compiled kernels; pillow: encode again (default auto: lossless if the kernels are built)",
    )  # fmt: skip
    p.add_argument(
        "--quality", metavar="Q|keep", default="keep",
        help="JPEG quality of what Pillow encodes, 1 to 100 (default keep: each original's quantisation tables and "
        "subsampling)",
    )  # fmt: skip
    p.add_argument(
        "--max-side", metavar="PIXELS", type=_within(int, 1, 1 << 31),
        help="shrink JPEGs whose longer side exceeds this; Pillow encodes them again",
    )  # fmt: skip
    p.add_argument(
        "--form", choices=("indexed", "pixels"), default="indexed",
        help="store images as JPEGs with an index, or as decoded pixels, for machines with much disk space and few "
        "cores (default indexed)",
    )  # fmt: skip
    p.add_argument(
        "--side", metavar="PIXELS", type=_within(int, 1, 1 << 31),
        help="with --form pixels: shrink images whose shorter side exceeds this, as Resize(PIXELS) does",
    )  # fmt: skip
    p.add_argument(
        "--pixels", choices=("yuv420", "rgb"), default="yuv420",
        help="with --form pixels: yuv420 takes half the space of rgb; rgb is exact (default yuv420)",
    )  # fmt: skip
    p.add_argument(
        "--segment", metavar="MCUS", type=_within(int, 1, MAX_SEGMENT_MCUS), default=4,
        help=f"most MCUs between two restart markers, 1 to {MAX_SEGMENT_MCUS} (default 4). More MCUs make files "
        "smaller, but crops decode more than they need",
    )  # fmt: skip
    p.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise",
        help="at a file that cannot be read: stop, or name it and leave it out (default raise)",
    )  # fmt: skip
    p.add_argument("--quiet", action="store_true", help="show no progress")
    p.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_tune(commands: _Commands) -> None:
    p = _add(
        commands, "tune", "prepserver.cli.tune:tune", "find the workers, cache and prefetch that your job needs",
        "Measures how many samples/s a loop with your training step gets on this machine with 1, 2, 3, ... workers, "
        "with caches, from packed data and with a larger prefetch, and recommends the cheapest configuration that is "
        "about as fast as the best. It starts its own daemon and takes one to three minutes; q stops it and shows the "
        "result so far. Nothing else should run on the machine.",
        "examples:\n  prepserver tune train.py:make_client --step train.py:step\n"
        "  prepserver tune /data/train --ops 'RandomResizedCrop(224)' --step-ms 180",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument(
        "what", metavar="WHAT", nargs="?",
        help="SCRIPT.py:FUNCTION or module:function that returns your PrepClient; or, with --ops, a folder of class "
        "folders or a source as in Python",
    )  # fmt: skip
    p.add_argument("--job", metavar="NAME", help="instead of WHAT: the data, ops, batch size and step of this job")
    p.add_argument("--ops", metavar="OPS", help="ops as in Python: 'RandomResizedCrop(224), RandomHorizontalFlip()'")
    p.add_argument(
        "--batch-size", metavar="N", type=_within(int, 1, 2**20), help="default: that of the script or job, or 256"
    )  # fmt: skip
    p.add_argument(
        "--step-ms", metavar="MS", type=_within(float, 0.0, 1e6),
        help="duration of your training step (default: none, so that rows are the limit; with --job: as measured)",
    )  # fmt: skip
    p.add_argument("--step", metavar="SCRIPT.py:FUNCTION", help="measure your step: a function that takes a batch")
    p.add_argument(
        "--seconds", metavar="S", type=_within(float, 0.1, 600), default=2.0,
        help="length of each measurement; the best configurations are measured several times (default 2)",
    )  # fmt: skip
    p.add_argument(
        "--most-workers", metavar="N", type=_within(int, 1, 1024), help="try up to N + 1 workers (default: usable CPUs)"
    )  # fmt: skip
    p.add_argument("--full", action="store_true", help="measure all combinations, which takes several times as long")
    p.add_argument("--plot", metavar="FILE", type=Path, help="draw the result: .png or .svg (needs matplotlib)")
    p.add_argument("--write", metavar="FILE.toml", type=Path, help="write the settings for prepserver start --config")
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    _add_plugin(p, "load a plug-in that the job uses; repeatable")


def _add_report(commands: _Commands) -> None:
    p = _add(
        commands, "report", "prepserver.cli.report:report", "write an HTML page about a run",
        "Writes one self-contained HTML page about a run of a job: samples/s, waiting, GPU and stages over time, "
        "verdicts, configuration and versions. Works while the job runs and afterwards. The last three runs of a job "
        "are kept: JOB is the last one, JOB~1 the one before it.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("job", metavar="JOB", help=_JOB_HELP)
    p.add_argument(
        "-o", metavar="FILE.html", dest="output", type=Path, required=True, help="the page; - writes it to stdout"
    )  # fmt: skip


def _add_compare(commands: _Commands) -> None:
    p = _add(
        commands, "compare", "prepserver.cli.report:compare", "compare two runs",
        "Shows figures, stages and verdicts of two runs side by side, and what differs in their configuration.",
        "example: prepserver compare resnet~1 resnet", cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("a", metavar="A", help="JOB, JOB~1 for the run before its last, or a page of `prepserver report`")
    p.add_argument("b", metavar="B", help="the same")
    p.add_argument("--json", action="store_true", help="print everything as JSON")


def _add_trace(commands: _Commands) -> None:
    p = _add(
        commands, "trace", "prepserver.cli.trace:trace", "record a timeline of workers and jobs, for Perfetto",
        "Records which worker makes which rows when, and what each training loop does between two messages to the "
        "daemon, and writes a trace for ui.perfetto.dev. For a closer look at one training loop, call "
        "`client.timeline(...)` in its script.",
    )  # fmt: skip
    p.add_argument(
        "--seconds", metavar="S", type=_within(float, 0.0, 600), default=10.0, help="how long to record (default 10)"
    )  # fmt: skip
    p.add_argument(
        "-o", metavar="FILE.pftrace", dest="output", type=Path, required=True, help="the trace; - writes it to stdout"
    )  # fmt: skip


def _add_demo(commands: _Commands) -> None:
    p = _add(
        commands, "demo", "prepserver.demo.run:run_demo", "see it work, in under 90 seconds",
        "Runs several real training processes on one shared stream, then each on its own DataLoader, and compares "
        "images/s and CPU time in a table.",
        runtime_dir=False,
    )  # fmt: skip
    p.add_argument("--data", metavar="DIR", help="a folder of class folders of images (default: synthetic photos)")
    p.add_argument("--jobs", metavar="N", type=_within(int, 1, 64), default=3, help="training processes (default 3)")
    p.add_argument("--workers", metavar="N|auto", default="auto", help="worker processes (default auto)")
    p.add_argument("--json", action="store_true", help="print the figures as JSON")


def _add_completion(commands: _Commands) -> None:
    p = _add(
        commands, "completion", "prepserver.cli.completion:completion", "print a completion script for your shell",
        "Prints a script that completes commands and options. Load it in your shell's startup file.",
        "examples:\n  bash: source <(prepserver completion bash)\n  zsh:  eval \"$(prepserver completion zsh)\"\n"
        "  fish: prepserver completion fish | source",
        runtime_dir=False,
    )  # fmt: skip
    p.add_argument("shell", choices=("bash", "zsh", "fish"))
