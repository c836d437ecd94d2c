"""``prepserver pack``: makes a packed dataset from another one.

It parses the arguments and shows the result; `prepserver.pack.run` packs. It imports only what parsing needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prepserver.pack.errors import PackError
from prepserver.telemetry.logs import counted

if TYPE_CHECKING:
    from prepserver.pack.run import Options, Summary
    from prepserver.pack.transcode import Transcoder
    from prepserver.pipeline.sources import SourceSpec

# As in `prepserver.cli.exits`, which this room may not import.
OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130

_DESCRIPTION = """\
Writes the samples of SOURCE, in order, into a few large files in OUT, with their labels, class names and names. JPEGs
get a restart marker every few blocks and an index, so that a worker decodes only what a crop needs: 1.3 to 1.4 times
the images/s of plain files, with the same pixels and in about the same space. The compiled kernels do this without
loss; without them, Pillow encodes again. Files that cannot be transcoded (PNG, CMYK, damaged
JPEGs) are kept as they are and still served. Use the result as Packed("OUT").
"""
_EPILOG = """\
Stopped or killed in the middle? Run the same command again: it goes on. A finished dataset is left alone.
exit codes: 0 packed, or packed already; 1 failed; 2 bad argument or folder; 130 stopped by Ctrl-C
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    p = commands.add_parser("pack", help="make a dataset that is read faster", description=_DESCRIPTION, epilog=_EPILOG)
    p.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder of class folders of images, a list of files ('path label' per line, or a .csv file), or "
        "WebDataset shards ('train-{000..127}.tar', with their .cls), or any source as in Python, such as "
        "'HuggingFace(\"/data/food101/train\")'",
    )
    p.add_argument("out", metavar="OUT", help="the folder to write: new, empty, or of an earlier run")
    p.add_argument(
        "--masks",
        metavar="WHERE",
        nargs="?",
        const=True,
        help="with their masks: a folder like SOURCE of PNGs; of shards the extension of masks, such as seg.png; of a "
        "list nothing more, for each line names its mask",
    )
    p.add_argument(
        "--plugin", metavar="NAME", action="append", default=[], help="load a plug-in, for 'Plugin(...)' as SOURCE"
    )
    p.add_argument("--workers", metavar="N|auto", default="auto", help="processes (default auto: usable CPUs)")
    p.add_argument("--shard-size", metavar="SIZE", default="256M", help="of a file (default 256M)")
    p.add_argument(
        "--transcoder",
        choices=("auto", "lossless", "pillow"),
        default="auto",
        help="lossless: by the compiled kernels; pillow: encodes again (default auto: lossless where they are there)",
    )
    p.add_argument(
        "--quality",
        metavar="Q|keep",
        default="keep",
        help="of what Pillow encodes, 1 to 100 (default keep: each original's quantisation tables and subsampling)",
    )
    p.add_argument(
        "--max-side", metavar="PIXELS", type=int, help="make JPEGs smaller whose longer side is above this, by Pillow"
    )
    p.add_argument(
        "--form",
        choices=("indexed", "pixels"),
        default="indexed",
        help="of images: JPEGs with an index, or decoded pixels, for machines with much disk and few cores (default "
        "indexed)",
    )
    p.add_argument(
        "--side",
        metavar="PIXELS",
        type=int,
        help="with --form pixels: the shorter side of images that have more, as by Resize(PIXELS)",
    )
    p.add_argument(
        "--pixels",
        choices=("yuv420", "rgb"),
        default="yuv420",
        help="with --form pixels: yuv420 takes half the bytes of rgb, which keeps every bit (default yuv420)",
    )
    p.add_argument(
        "--segment",
        metavar="MCUS",
        type=int,
        default=4,
        help="most MCUs between two restart markers, 1 to 8 (default 4); more: smaller files, less exact cuts",
    )
    p.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="on a file that cannot be read, stop, or leave it out, named and counted (default raise)",
    )
    p.add_argument("--quiet", action="store_true", help="no progress")
    p.add_argument("--json", action="store_true", help="the summary, for machines")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    from prepserver.config import ConfigError
    from prepserver.pack.report import report_for
    from prepserver.pack.run import pack
    from prepserver.pipeline.errors import SpecError
    from prepserver.plugins import PluginError

    try:
        spec, options = _spec(arguments), _options(arguments)
        report = report_for(arguments.quiet)
        transcoder = options.transcoder
        if not transcoder.lossless and transcoder.pixels is None and arguments.transcoder == "auto":
            quality = "each original's tables" if arguments.quality == "keep" else arguments.quality
            report.say(f"Pillow encodes JPEGs again (quality: {quality}). For packing without loss, {_missing()}")
        summary = pack(spec, Path(os.path.abspath(arguments.out)), options, report)
    except KeyboardInterrupt:
        sys.stderr.write(
            "prepserver pack: stopped. What is packed so far is safe: run the same command again to go on, or remove "
            f"{os.path.abspath(arguments.out)} to begin anew\n"
        )
        return INTERRUPTED
    except (PackError, ConfigError, SpecError, PluginError) as error:
        sys.stderr.write(f"prepserver pack: {error}\n")
        return FAILED if isinstance(error, PackError) and not error.usage else USAGE
    sys.stdout.write(json.dumps(dataclasses.asdict(summary)) + "\n" if arguments.json else _text(summary))
    return OK


def _spec(arguments: argparse.Namespace) -> SourceSpec:
    from prepserver.pack.expression import source_from
    from prepserver.plugins import codes, load

    load(arguments.plugin)
    if (written := source_from(arguments.source)) is not None:
        if arguments.masks is not None:
            raise PackError(f"--masks: say it in the source, as in {type(written).__name__}(...)", usage=True)
        return written.with_code(codes())
    return _at_path(arguments)


def _at_path(arguments: argparse.Namespace) -> SourceSpec:
    from prepserver.pipeline.arrayfile import SUFFIXES
    from prepserver.pipeline.sources import FileList, ImageFolder, Packed, Tar
    from prepserver.pipeline.urls import canonical
    from prepserver.source.readers.packed import PLAN_NAME

    # Packing refuses a URL, and says so.
    path = canonical("SOURCE", arguments.source) or os.path.abspath(os.path.expanduser(arguments.source))
    if path.endswith(".tar"):
        if arguments.masks is True:
            raise PackError("--masks: needs the extension of the masks in the tars, such as seg.png", usage=True)
        return Tar(path, mask=arguments.masks)
    if path.endswith(SUFFIXES):
        raise PackError(
            f"{path} holds arrays: their rows need no decoding, so packing gains nothing. Use Arrays(...)", usage=True
        )
    if os.path.isfile(path):
        if isinstance(arguments.masks, str):
            raise PackError(
                f"--masks {arguments.masks}: each line of a list names its mask; give --masks alone", usage=True
            )
        return FileList(path, masks=arguments.masks)
    if arguments.masks is True:
        raise PackError("--masks: needs the folder of the masks", usage=True)
    return Packed(path) if os.path.exists(f"{path}/{PLAN_NAME}") else ImageFolder(path, masks=arguments.masks)


def _options(arguments: argparse.Namespace) -> Options:
    from prepserver.config import auto_workers, parse_bytes, parse_workers
    from prepserver.pack.run import Options
    from prepserver.protocol.packed import MAX_SEGMENT_MCUS

    if not 1 <= arguments.segment <= MAX_SEGMENT_MCUS:
        raise PackError(f"--segment {arguments.segment}: needs a number from 1 to {MAX_SEGMENT_MCUS}", usage=True)
    if arguments.max_side is not None and arguments.max_side < 1:
        raise PackError(f"--max-side {arguments.max_side}: needs a number of pixels", usage=True)
    shard_bytes = parse_bytes(arguments.shard_size, "--shard-size")
    if shard_bytes < 1 << 20:
        raise PackError(f"--shard-size {arguments.shard_size}: needs 1M or more", usage=True)
    # All CPUs, because the parent has little to do.
    workers = parse_workers(arguments.workers, "--workers") or auto_workers() + 1
    return Options(_transcoder(arguments), shard_bytes, workers, arguments.on_error == "skip")


def _transcoder(arguments: argparse.Namespace) -> Transcoder:
    from prepserver.pack.transcode import KEEP_QUALITY, Transcoder
    from prepserver.transform import native

    quality = arguments.quality
    if arguments.form == "pixels":
        if arguments.side is not None and arguments.side < 1:
            raise PackError(f"--side {arguments.side}: needs a number of pixels", usage=True)
        if arguments.max_side is not None:
            raise PackError("--max-side is for JPEGs; of pixels, --side is the shorter side", usage=True)
        return Transcoder(False, pixels=arguments.pixels, side=arguments.side)
    if arguments.side is not None:
        raise PackError("--side is for --form pixels; of JPEGs, --max-side is the longer side", usage=True)
    if quality != "keep" and not (quality.isdigit() and 1 <= int(quality) <= 100):
        raise PackError(f"--quality {quality}: needs a number from 1 to 100, or keep", usage=True)
    lossless = arguments.transcoder != "pillow" and native.kernels() is not None
    if arguments.transcoder == "lossless" and not lossless:
        raise PackError(f"--transcoder lossless: {_missing()}")
    return Transcoder(
        lossless, arguments.segment, KEEP_QUALITY if quality == "keep" else int(quality), arguments.max_side
    )


def _missing() -> str:
    from prepserver.transform import native

    reason = native.path().reason
    return f"install the compiled kernels ({reason}), and begin anew"


def _text(summary: Summary) -> str:
    done = summary.this_run
    whole = done.get("samples") == summary.samples + summary.skipped
    ratio = f", {summary.total_bytes / done['bytes_read']:.3f} of the originals" if whole and done["bytes_read"] else ""
    stored = f"pixels {summary.pixels}" if summary.pixels else f"indexed {summary.indexed}"
    lines = [
        f"{summary.folder}: {counted(summary.samples, 'sample')} in {counted(summary.shards, 'shard')}, "
        f"{summary.total_bytes / 1e6:.1f} MB{ratio}" + (" (packed already)" if summary.already else ""),
        f"  {stored}, kept as they were {summary.kept}, left out {summary.skipped}",
    ]
    if done.get("samples"):
        how = ", ".join(f"{what} {count}" for what, count in done["how"].items())
        rate = f"{done['images_per_s']:.0f} images/s"
        lines.append(f"  this run: {done['samples']} in {done['seconds']:.1f} s, {rate}: {how}")
    lines.append(f"  use it as {summary.use}")
    return "\n".join(lines) + "\n"
