"""The command line: ``prepserver start | status | top | stop | audit | replay | pack | ...``.

Data goes to stdout, everything else to stderr. Each command imports what it needs when it runs: asking a
daemon for its state must not wait for torch. The module is long because it holds the arguments of all commands, whose
help must not wait either.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from prepserver.cli import exits
from prepserver.cli.version import VersionAction
from prepserver.protocol.packed import MAX_SEGMENT_MCUS

_RUNTIME_DIR_HELP = (
    "where the sockets are (default: $PREPSERVER_RUNTIME_DIR, else $XDG_RUNTIME_DIR/prepserver, else /run/prepserver, "
    "else a directory of yours under /tmp)"
)
_CACHE_DIR_HELP = (
    "the daemon's --cache-dir (default: the running daemon's, else $STATE_DIRECTORY, else the user's cache)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; see `prepserver.cli.exits`."""
    _open_what_is_closed(is_daemon="start" in (sys.argv[1:] if argv is None else argv))
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
                raise out.failed  # argparse passes over it
    except exits.CommandError as e:
        sys.stderr.write(f"{command}: {e}\n")
        return e.code
    except KeyboardInterrupt:
        return 130
    except OSError as e:
        if isinstance(e, PermissionError) and e.filename is not None:  # a file of another user's, such as the daemon's
            sys.stderr.write(f"{command}: {e.filename}: {e.strerror}\n")
            return exits.NO_PERMISSION
        if out is None or e is not out.failed:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if e.errno == errno.EPIPE:  # the reader of stdout has ended, such as `head`
            return 141
        sys.stderr.write(f"{command}: cannot write its output: {e.strerror}\n")
        return exits.FAILED


class _Out(io.FileIO):
    """stdout; `failed` is the first error of writing it, which looks like one of any other file."""

    failed: OSError | None = None
    replaced: Any = None  # who closes the descriptor

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as e:
            self.failed = self.failed or e
            raise self.failed from None

    @classmethod
    def take_stdout(cls) -> _Out | None:
        """Takes the place of stdout, unless that is no file."""
        was = sys.stdout
        if not isinstance(was, io.TextIOWrapper) or not isinstance(was.buffer, io.BufferedWriter | io.FileIO):
            return None
        was.flush()
        out = cls(was.fileno(), "w", closefd=False)
        out.replaced = was
        # Names are shown in any locale, as far as it has their letters.
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(out), was.encoding, "replace", line_buffering=was.isatty())
        return out


def _open_what_is_closed(*, is_daemon: bool) -> None:
    """Opens /dev/null in place of stdin, stdout and stderr where they are closed, before a socket gets their number.

    A command that has something to say fails then, because this stdout cannot be written. What the plug-ins of a daemon
    print goes nowhere.
    """
    out = os.O_WRONLY if is_daemon else os.O_RDONLY
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", out), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, flags)  # the lowest number that is free
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "r" if name == "stdin" else "w", closefd=False))


def command_line() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="prepserver",
        description="A preprocessing daemon. Its workers decode and augment images straight into shared memory, "
        "and all training jobs of the machine that ask for the same data share one pass.",
        epilog=exits.EPILOG,
    )
    parser.add_argument("--version", action=VersionAction, help="print release, commit, kernels and codecs, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for add in (_add_start, _add_status, _add_top, _add_metrics, _add_doctor, _add_stop, _add_quarantine, _add_audit,
                _add_replay, _add_report, _add_compare, _add_trace, _add_pack, _add_tune, _add_demo,
                _add_completion):  # fmt: skip
        add(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add(
    commands: _Commands, name: str, run: str, summary: str, description: str, epilog: str = "", *,
    runtime_dir: bool = True, cache_dir: str = "",
) -> argparse.ArgumentParser:  # fmt: skip
    """Adds a command; `run` is its "module:function", imported when it runs, `cache_dir` the help of that option."""
    p = commands.add_parser(name, help=summary, description=description, epilog=epilog + exits.EPILOG)
    p.set_defaults(run=run)
    if runtime_dir:
        places = p.add_argument_group("places")  # after the command's own options
        places.add_argument("--runtime-dir", metavar="DIR", help=_RUNTIME_DIR_HELP)
        if cache_dir:
            places.add_argument("--cache-dir", metavar="DIR", help=cache_dir)
    return p


def _add_plugin(p: argparse.ArgumentParser, what: str) -> None:
    p.add_argument("--plugin", metavar="NAME", action="append", dest="plugins", help=what)


def _add_start(commands: _Commands) -> None:
    p = _add(
        commands, "start", "prepserver.cli.start:start", "run the daemon",
        "Runs the daemon in the foreground and logs to stderr. After SIGTERM or Ctrl-C it gives jobs drain_s seconds "
        "(default 5) to finish, then ends everything within 3 s more; a second signal skips the wait.",
        "Settings come from the command line, then --config, then defaults. The file is TOML with workers, "
        "memory, worker_memory, runtime_dir, cache_dir, log_level, log_format, chunk_rows, sample_timeout_s, "
        "drain_s, nice, sandbox, engine, socket_group, socket_mode, [sources] roots, [plugins] load and read, [cache] "
        "memory, disk and folders, [limits] memory_per_uid, jobs_per_uid, streams_per_uid, and [ray] address, workers. "
        "SIGHUP makes the daemon read it again. ",
        cache_dir="where listings of datasets are kept (default: the user's cache)",
    )  # fmt: skip
    p.add_argument("--workers", metavar="N|auto", help="worker processes (default auto: usable CPUs, less one)")
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
        help="a folder of this user's below which jobs may have caches on disk; repeatable (default none)",
    )  # fmt: skip
    p.add_argument(
        "--root", metavar="DIR|URL", action="append", dest="source_roots",
        help="a folder below which users other than the daemon's own and root may read datasets, or a URL such as "
        "s3://bucket below which everyone may; repeatable. Without any, those users get synthetic data only",
    )  # fmt: skip
    _add_plugin(
        p, "load ops and sources of your own: an entry point of prepserver.ops or prepserver.sources, a module, or "
        "module:object; repeatable",
    )  # fmt: skip
    p.add_argument("--plugin-read", metavar="DIR", action="append", help="a folder that plug-ins may read; repeatable")
    p.add_argument(
        "--engine", choices=("local", "ray"),
        help="what fills rows: local workers (the default), or also remote ones on the machines of a Ray cluster, with "
        "--remote-workers. They read the datasets there, under the same paths. Needs the extra ray",
    )  # fmt: skip
    p.add_argument(
        "--address", metavar="HOST:PORT|auto", dest="ray_address",
        help="where the Ray cluster is (default auto: the one that this machine belongs to)",
    )  # fmt: skip
    p.add_argument("--remote-workers", metavar="N", type=int, help="with --engine ray: workers there, each of one CPU")
    p.add_argument("--config", metavar="FILE.toml", type=Path, help="settings from a file")
    p.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default info")
    p.add_argument("--log-format", choices=("text", "json"), help="text for people (the default), or JSON lines")
    p.add_argument("--foreground", action="store_true", help="stay in the foreground; the default, for unit files")
    p.add_argument("-d", "--daemon", action="store_true", help="detach; returns when the daemon is ready")
    p.add_argument(
        "--replace", action="store_true",
        help="take the place of the daemon that runs in the directory, once this one's workers are up: its jobs go on "
        "after a moment, with the same rows. If this one cannot start, that one goes on",
    )  # fmt: skip
    p.add_argument("--lifeline", metavar="PID", type=int, help=argparse.SUPPRESS)  # ends with this process


def _add_status(commands: _Commands) -> None:
    p = _add(
        commands, "status", "prepserver.cli.status:status", "show what the daemon does",
        "Shows workers, jobs (their position in the epoch, their images/s, how much of their time they wait and "
        "for what), streams and lanes with their sharing factor (rows delivered per row made), memory, and GPUs if "
        "there is a driver. Rates and shares cover the last ten seconds. A job waits for the workers, for another job "
        "(named by its id), for ranks of its own that have not attached, for a stream that it is to join, or for its "
        "start position.",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="everything, for machines")


def _add_top(commands: _Commands) -> None:
    p = _add(
        commands, "top", "prepserver.cli.top:top", "watch jobs, workers and GPUs, and what limits each job",
        "Shows jobs (images/s, how much of their time they wait for rows, how many jobs share a row, rows behind the "
        "first job of their stream, fill of their ring, verdict), what the workers spend their time on, GPUs and "
        "memory, again every SECONDS. Keys: q quits, s sorts by the next column, f freezes and thaws. Without a "
        "terminal it shows them once.",
    )  # fmt: skip
    p.add_argument("--every", metavar="SECONDS", type=_within(float, 0.1, 86400), default=1.0, help="default 1")
    p.add_argument("--once", action="store_true", help="show it once")
    p.add_argument("--json", action="store_true", help="the daemon's whole state, a line each time; see status --json")


def _add_metrics(commands: _Commands) -> None:
    p = _add(
        commands, "metrics", "prepserver.cli.metrics:metrics", "serve the daemon's figures to Prometheus",
        "Serves the figures of `prepserver status` at /metrics, in Prometheus's format, and at /health whether the "
        "daemon answers (200 or 503). It is a process of its own that asks the daemon at most once a second. Needs "
        "the extra `metrics`. deploy/ has a unit, a Grafana dashboard and alert rules.",
    )  # fmt: skip
    p.add_argument(
        "--listen", metavar="HOST:PORT|unix:PATH", default="127.0.0.1:9477",
        help="where (default 127.0.0.1:9477, for this machine only). Whoever can connect sees the names of all jobs",
    )  # fmt: skip
    p.add_argument("--once", action="store_true", help="print the metrics instead, such as for a textfile collector")


def _add_doctor(commands: _Commands) -> None:
    p = _add(
        commands, "doctor", "prepserver.cli.doctor:doctor", "look for what slows prepserver down on this machine",
        "Looks at memory and its limits, cores, the compiled kernels, the workers' sandbox, open files, the container, "
        "GPUs and their place in the machine, and measures for a second how fast a core decodes. Each finding is ok, "
        "slow or broken, and names the command that fixes it. Exits with 1 if one is broken. Needs no daemon.",
    )  # fmt: skip
    p.add_argument(
        "--seconds", metavar="S", type=_within(float, 0.0, 60), default=1.0,
        help="of decoding, of reading with --storage, and of each machine with --engine ray (default 1)",
    )  # fmt: skip
    p.add_argument(
        "--job-rate", metavar="IMAGES_PER_S", type=_within(float, 1.0, 1e7), default=2500.0,
        help="what one training job takes (default 2500: about ResNet-50 in bfloat16 on an A100)",
    )  # fmt: skip
    p.add_argument("--storage", metavar="DIR", help="also measure how fast the files below DIR are read")
    p.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help="with ray, also measure the network from each machine of a Ray cluster to this one",
    )  # fmt: skip
    p.add_argument("--address", metavar="HOST:PORT|auto", default="auto", help="of the cluster, as for start")
    p.add_argument("--json", action="store_true", help="the findings, for machines")


def _within(kind: type[float], low: float, high: float) -> Callable[[str], float]:
    """The type of an argument from `low` to `high`."""

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not in [{low:g}, {high:g}]")
        return value

    parse.__name__ = kind.__name__  # argparse puts it into its errors
    return parse


def _add_stop(commands: _Commands) -> None:
    _add(
        commands, "stop", "prepserver.cli.stop:stop", "end the daemon",
        "Asks the daemon to end, and waits until it has: it first gives jobs drain_s seconds to finish.",
    )  # fmt: skip


def _add_quarantine(commands: _Commands) -> None:
    p = _add(
        commands, "quarantine", "prepserver.cli.quarantine:quarantine", "list or clear samples that killed workers",
        "Lists the samples on which workers died, or clears them. A cleared sample is tried again by the "
        "next job that opens its dataset while no other reads it. Needs no daemon.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("--clear", metavar="PATH|INDEX", action="append", help="try this sample again; repeatable")
    p.add_argument("--clear-all", action="store_true", help="try all of them again")
    p.add_argument("--json", action="store_true", help="the list, for machines")


def _add_audit(commands: _Commands) -> None:
    p = _add(
        commands, "audit", "prepserver.cli.audit:audit", "prove that a job got each sample exactly once",
        "Reads the log that the daemon keeps of a job, and proves that the job got each sample of an epoch exactly "
        "once, or names the samples that it did not. Works while the job runs and afterwards. A script that is started "
        "again under the same name is another training, as is one that reads another dataset. Exits with 0 if every "
        "epoch of every training is right (the last one as far as it has come), else with 1.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("job", metavar="JOB", help="the name that the client gave with job=; see `prepserver status`")
    p.add_argument("--epoch", metavar="N", type=int, help="only this epoch (default all)")
    p.add_argument("--json", action="store_true", help="everything, for machines")


def _add_replay(commands: _Commands) -> None:
    p = _add(
        commands, "replay", "prepserver.cli.replay:replay", "make one row of a job again",
        "Makes exactly the row again that a job was given: from its log, without a daemon. Prints the "
        "sample's index, path and label, and the row's position, pass and epoch.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("--job", metavar="JOB", required=True, help="as for audit")
    p.add_argument(
        "--batch", metavar="B", type=int, required=True,
        help="number of the batch in its epoch, from 0; where a training went on from a checkpoint, from there",
    )  # fmt: skip
    p.add_argument("--row", metavar="R", type=int, default=0, help="number of the row in the batch, from 0 (default 0)")
    p.add_argument("--field", metavar="NAME", help="which column, such as mask (default: the source's first)")
    p.add_argument(
        "--view", metavar="V", type=int,
        help="which view, from 0, if each sample has several (default: all, side by side in a picture)",
    )  # fmt: skip
    p.add_argument("--rank", metavar="R", type=int, default=0, help="default 0")
    p.add_argument("--epoch", metavar="N", type=int, help="default: the first in the log")
    p.add_argument(
        "--training", metavar="N", type=int,
        help="which one, if `prepserver audit` lists several (default: the last that reads what the first does)",
    )  # fmt: skip
    p.add_argument(
        "-o", metavar="FILE", dest="output", type=Path, required=True,
        help="a picture with normalisation undone (.png), or the row as it is stored (.npy)",
    )  # fmt: skip
    _add_plugin(p, "a plug-in of the daemon that the job used; repeatable")


def _add_pack(commands: _Commands) -> None:
    p = _add(
        commands, "pack", "prepserver.cli.pack:pack", "make a dataset that is read faster",
        "Writes the samples of SOURCE, in order, into a few large files in OUT, with their labels, class names and "
        "names. JPEGs get a restart marker every few blocks and an index, so that a worker decodes only what a crop "
        "needs: 1.3 to 1.4 times the images/s of plain files, with the same pixels and in about the same space. The "
        "compiled kernels do this without loss; without them, Pillow encodes again. Files that cannot be transcoded "
        '(PNG, CMYK, damaged JPEGs) are kept as they are and still served. Use the result as Packed("OUT").',
        "Stopped or killed in the middle? Run the same command again: it goes on. A finished dataset is left alone. ",
        runtime_dir=False,
    )  # fmt: skip
    p.add_argument(
        "source", metavar="SOURCE",
        help="a folder of class folders of images, a list of files ('path label' per line, or a .csv file), or "
        "WebDataset shards ('train-{000..127}.tar', with their .cls), or any source as in Python, such as "
        "'HuggingFace(\"/data/food101/train\")'",
    )  # fmt: skip
    p.add_argument("out", metavar="OUT", help="the folder to write: new, empty, or of an earlier run")
    p.add_argument(
        "--masks", metavar="WHERE", nargs="?", const=True,
        help="with their masks: a folder like SOURCE of PNGs; of shards the extension of masks, such as seg.png; of a "
        "list nothing more, for each line names its mask",
    )  # fmt: skip
    _add_plugin(p, "load a plug-in, for 'Plugin(...)' as SOURCE; repeatable")
    p.add_argument("--workers", metavar="N|auto", default="auto", help="processes (default auto: usable CPUs)")
    p.add_argument("--shard-size", metavar="SIZE", default="256M", help="of a file (default 256M)")
    p.add_argument(
        "--transcoder", choices=("auto", "lossless", "pillow"), default="auto",
        help="lossless: by the compiled kernels; pillow: encodes again (default auto: lossless where they are there)",
    )  # fmt: skip
    p.add_argument(
        "--quality", metavar="Q|keep", default="keep",
        help="of what Pillow encodes, 1 to 100 (default keep: each original's quantisation tables and subsampling)",
    )  # fmt: skip
    p.add_argument(
        "--max-side", metavar="PIXELS", type=_within(int, 1, 1 << 31),
        help="make JPEGs smaller whose longer side is above this, by Pillow",
    )  # fmt: skip
    p.add_argument(
        "--form", choices=("indexed", "pixels"), default="indexed",
        help="of images: JPEGs with an index, or decoded pixels, for machines with much disk and few cores (default "
        "indexed)",
    )  # fmt: skip
    p.add_argument(
        "--side", metavar="PIXELS", type=_within(int, 1, 1 << 31),
        help="with --form pixels: the shorter side of images that have more, as by Resize(PIXELS)",
    )  # fmt: skip
    p.add_argument(
        "--pixels", choices=("yuv420", "rgb"), default="yuv420",
        help="with --form pixels: yuv420 takes half the bytes of rgb, which keeps every bit (default yuv420)",
    )  # fmt: skip
    p.add_argument(
        "--segment", metavar="MCUS", type=_within(int, 1, MAX_SEGMENT_MCUS), default=4,
        help="most MCUs between two restart markers, 1 to 8 (default 4); more: smaller files, less exact cuts",
    )  # fmt: skip
    p.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise",
        help="on a file that cannot be read, stop, or leave it out, named and counted (default raise)",
    )  # fmt: skip
    p.add_argument("--quiet", action="store_true", help="no progress")
    p.add_argument("--json", action="store_true", help="the summary, for machines")


def _add_tune(commands: _Commands) -> None:
    p = _add(
        commands, "tune", "prepserver.cli.tune:tune", "find workers, cache and prefetch for your data and step",
        "Measures how many images/s a loop with your training step gets from this machine with 1, 2, 3, ... workers, "
        "with caches, from packed data and with another prefetch, and recommends the cheapest configuration that is as "
        "fast as the best. It runs a daemon of its own, and takes one to three minutes; q stops it and shows what is "
        "known by then. The machine should do nothing else.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument(
        "what", metavar="WHAT", nargs="?",
        help="SCRIPT.py:FUNCTION or module:function that returns your PrepClient; or a source as in Python or a folder "
        "of class folders, with --ops",
    )  # fmt: skip
    p.add_argument("--job", metavar="NAME", help="tune this job of the daemon: its data, ops, batch and measured step")
    p.add_argument("--ops", metavar="OPS", help="such as 'RandomResizedCrop(224), RandomHorizontalFlip()'")
    p.add_argument("--batch-size", metavar="N", type=_within(int, 1, 2**20), help="default the script's, or 256")
    p.add_argument(
        "--step-ms", metavar="MS", type=_within(float, 0.0, 1e6),
        help="length of your training step (default: as fast as rows come; with --job, as measured)",
    )  # fmt: skip
    p.add_argument("--step", metavar="SCRIPT.py:FUNCTION", help="measure the step: a function that takes a batch")
    p.add_argument(
        "--seconds", metavar="S", type=_within(float, 0.1, 600), default=2.0,
        help="of each measurement; the best points are measured several times (default 2)",
    )  # fmt: skip
    p.add_argument("--most-workers", metavar="N", type=_within(int, 1, 1024), help="try about so many (default all)")
    p.add_argument("--full", action="store_true", help="measure every combination, which takes some times as long")
    p.add_argument("--plot", metavar="FILE", type=Path, help="draw it: .png or .svg (needs matplotlib)")
    p.add_argument("--write", metavar="FILE.toml", type=Path, help="write settings for prepserver start --config")
    p.add_argument("--json", action="store_true", help="everything, for machines")
    _add_plugin(p, "load a plug-in that the job uses; repeatable")


def _add_report(commands: _Commands) -> None:
    p = _add(
        commands, "report", "prepserver.cli.report:report", "make a page of how a run went",
        "Writes one HTML page, which needs nothing else, of what the daemon counted of a job: images/s, waiting, GPU "
        "and stages over time, verdicts, configuration and versions. Works while the job runs and afterwards; the last "
        "runs of a job are kept, and JOB~1 means the one before the last.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("job", metavar="JOB", help="as for audit")
    p.add_argument("-o", metavar="FILE.html", dest="output", type=Path, required=True, help="- for stdout")


def _add_compare(commands: _Commands) -> None:
    p = _add(
        commands, "compare", "prepserver.cli.report:compare", "compare two runs",
        "Shows the figures, stages and verdicts of two runs beside each other, and what differs in their "
        "configuration. A and B are names of jobs, such as JOB~1 and JOB, or pages that `prepserver report` wrote.",
        cache_dir=_CACHE_DIR_HELP,
    )  # fmt: skip
    p.add_argument("a", metavar="A", help="JOB, JOB~1 for the run before its last, or FILE.html")
    p.add_argument("b", metavar="B", help="the same")
    p.add_argument("--json", action="store_true", help="everything, for machines")


def _add_trace(commands: _Commands) -> None:
    p = _add(
        commands, "trace", "prepserver.cli.trace:trace", "record what workers and jobs do, for Perfetto",
        "Records for some seconds which worker makes which rows when, and what each training loop does between two "
        "messages, and writes a trace that ui.perfetto.dev shows. `client.timeline(...)` in a training script is more "
        "exact about its own loop.",
    )  # fmt: skip
    p.add_argument("--seconds", metavar="S", type=_within(float, 0.0, 600), default=10.0, help="default 10")
    p.add_argument("-o", metavar="FILE.pftrace", dest="output", type=Path, required=True, help="what to write")


def _add_demo(commands: _Commands) -> None:
    p = _add(
        commands, "demo", "prepserver.demo.run:run_demo", "see it work, in under 90 seconds",
        "Runs several real training processes on one shared stream, then each on its own DataLoader, and compares "
        "their rates and their CPU time in a table.",
        runtime_dir=False,
    )  # fmt: skip
    p.add_argument("--data", metavar="DIR", help="a folder of class folders of images (default: synthetic photos)")
    p.add_argument("--jobs", metavar="N", type=_within(int, 1, 64), default=3, help="training processes (default 3)")
    p.add_argument("--workers", metavar="N|auto", default="auto", help="worker processes (default auto)")
    p.add_argument("--json", action="store_true", help="the figures, for machines")


def _add_completion(commands: _Commands) -> None:
    p = _add(
        commands, "completion", "prepserver.cli.completion:completion", "print a completion script for your shell",
        "Prints a script that completes commands and options: "
        'source <(prepserver completion bash), in zsh eval "$(prepserver completion zsh)", in fish '
        "prepserver completion fish | source.",
        runtime_dir=False,
    )  # fmt: skip
    p.add_argument("shell", choices=("bash", "zsh", "fish"))
