"""``prepserver pack``: makes a packed dataset from another dataset, and shows the result."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from prepserver.cli.exits import FAILED, OK, USAGE, CommandError
from prepserver.config import ConfigError, auto_workers, parse_bytes, parse_workers
from prepserver.pack import PackError
from prepserver.pack.expression import source_from
from prepserver.pack.report import report_for
from prepserver.pack.run import Options, Summary
from prepserver.pack.run import pack as packed
from prepserver.pack.transcode import KEEP_QUALITY, Transcoder
from prepserver.pipeline.arrayfile import SUFFIXES
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import FileList, ImageFolder, Packed, SourceSpec, Tar
from prepserver.pipeline.urls import canonical
from prepserver.plugins import PluginError, codes, load
from prepserver.source.readers.packed import PLAN_NAME
from prepserver.telemetry.logs import counted
from prepserver.transform import native


def pack(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        spec, options = _spec(arguments), _options(arguments)
        report = report_for(arguments.quiet)
        transcoder = options.transcoder
        if not transcoder.lossless and transcoder.pixels is None and arguments.transcoder == "auto":
            quality = "each original's tables" if arguments.quality == "keep" else arguments.quality
            report.say(f"Pillow encodes JPEGs again (quality: {quality}). For packing without loss, {_missing()}")
        summary = packed(spec, Path(os.path.abspath(arguments.out)), options, report)
    except KeyboardInterrupt:
        sys.stderr.write(
            "prepserver pack: stopped. What is packed so far is safe: run the same command again to continue, or "
            f"remove {os.path.abspath(arguments.out)} to start over\n"
        )
        raise
    except (PackError, ConfigError, SpecError, PluginError) as e:
        raise CommandError(e, FAILED if isinstance(e, PackError) and not e.usage else USAGE) from e
    sys.stdout.write(json.dumps(dataclasses.asdict(summary)) + "\n" if arguments.json else _text(summary))
    return OK


def _spec(arguments: argparse.Namespace) -> SourceSpec:
    load(arguments.plugins or ())
    if (written := source_from(arguments.source)) is not None:
        if arguments.masks is not None:
            raise PackError(f"--masks: name the masks in {type(written).__name__}(...) instead", usage=True)
        return written.with_code(codes())
    return _at_path(arguments)


def _at_path(arguments: argparse.Namespace) -> SourceSpec:
    # A URL stays one: packing refuses it with a reason.
    path = canonical("SOURCE", arguments.source) or os.path.abspath(os.path.expanduser(arguments.source))
    if path.endswith(".tar"):
        if arguments.masks is True:
            raise PackError("--masks needs the extension of the masks in the tars, such as seg.png", usage=True)
        return Tar(path, mask=arguments.masks)
    if path.endswith(SUFFIXES):
        raise PackError(
            f"{path} holds arrays, which need no decoding, so packing gains nothing. Use Arrays(...)", usage=True
        )
    if os.path.isfile(path):
        if isinstance(arguments.masks, str):
            raise PackError(
                f"--masks {arguments.masks}: each line of a list names its mask; pass --masks without a value",
                usage=True,
            )
        return FileList(path, masks=arguments.masks)
    if arguments.masks is True:
        raise PackError("--masks needs the folder of the masks", usage=True)
    return Packed(path) if os.path.exists(f"{path}/{PLAN_NAME}") else ImageFolder(path, masks=arguments.masks)


def _options(arguments: argparse.Namespace) -> Options:
    shard_bytes = parse_bytes(arguments.shard_size, "--shard-size")
    if shard_bytes < 1 << 20:
        raise PackError(f"--shard-size {arguments.shard_size}: must be at least 1M", usage=True)
    # One more than the daemon's: the parent has little to do.
    workers = parse_workers(arguments.workers, "--workers") or auto_workers() + 1
    return Options(_transcoder(arguments), shard_bytes, workers, arguments.on_error == "skip")


def _transcoder(arguments: argparse.Namespace) -> Transcoder:
    quality = arguments.quality
    if arguments.form == "pixels":
        if arguments.max_side is not None:
            raise PackError(
                "--max-side is for JPEGs; with --form pixels use --side, a limit on the shorter side", usage=True
            )
        return Transcoder(False, pixels=arguments.pixels, side=arguments.side)
    if arguments.side is not None:
        raise PackError("--side needs --form pixels; for JPEGs use --max-side, a limit on the longer side", usage=True)
    if quality != "keep" and not (quality.isdigit() and 1 <= int(quality) <= 100):
        raise PackError(f"--quality {quality}: must be a number from 1 to 100, or keep", usage=True)
    lossless = arguments.transcoder != "pillow" and native.kernels() is not None
    if arguments.transcoder == "lossless" and not lossless:
        raise PackError(f"--transcoder lossless: {_missing()}")
    return Transcoder(
        lossless, arguments.segment, KEEP_QUALITY if quality == "keep" else int(quality), arguments.max_side
    )


def _missing() -> str:
    return f"install the compiled kernels ({native.path().reason}), and start over"


def _text(summary: Summary) -> str:
    done = summary.this_run
    whole = done.get("samples") == summary.samples + summary.skipped
    ratio = f", {summary.total_bytes / done['bytes_read']:.3f} of the originals" if whole and done["bytes_read"] else ""
    stored = f"pixels {summary.pixels}" if summary.pixels else f"indexed {summary.indexed}"
    lines = [
        f"{summary.folder}: {counted(summary.samples, 'sample')} in {counted(summary.shards, 'shard')}, "
        f"{summary.total_bytes / 1e6:.1f} MB{ratio}" + (" (already packed)" if summary.already else ""),
        f"  {stored}, kept unchanged {summary.kept}, left out {summary.skipped}",
    ]
    if done.get("samples"):
        how = ", ".join(f"{what} {count}" for what, count in done["how"].items())
        rate = f"{done['images_per_s']:.0f} samples/s"
        lines.append(f"  this run: {done['samples']} in {done['seconds']:.1f} s, {rate}: {how}")
    lines.append(f"  use it as {summary.use}")
    return "\n".join(lines) + "\n"
