"""Reads a `Plugin`: a Dataset of the operator, whose samples are checked against the declared columns."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image as Picture

from prepserver import pictures, plugins
from prepserver.pipeline.checks import WHOLE_TOPS
from prepserver.pipeline.kinds import ITEM_BYTES, Image, Mask
from prepserver.pipeline.record import label_of
from prepserver.pipeline.sources.plugin import Plugin
from prepserver.plugin_values import as_array, conform, described
from prepserver.seeding import seeded
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.samples import NOT_THE_SAMPLE, Record, Source


class PluginReader(ScanningReader):
    spec: Plugin

    def scan(self, progress: Progress) -> Scan:
        dataset, samples = self._made()
        if samples == 0 and (hint := _hint(PermissionError())):  # `Path.glob` finds nothing where it may not read
            raise SourceError(f"{self._what} has 0 samples{hint}")
        classes = [str(name) for name in getattr(dataset, "classes", None) or ()]
        version = _version(dataset)
        told = [] if version is None else [version]
        content = json.dumps([self.spec.name, dict(self.spec.params), self.spec.code, samples, classes, *told])
        meta = {"n": samples, "classes": classes, "num_classes": len(classes), "version": version}
        return Scan(meta | {"content_digest": hashlib.sha256(content.encode()).hexdigest()}, {}, Places())

    def is_current(self, container: Container) -> bool:
        return False  # only a new Dataset can tell

    def read_by(self, container: Container) -> PluginSource:
        dataset, samples = self._made()
        if samples != container.meta["n"]:
            raise SourceError(f"{self._what} has {samples} samples, but had {container.meta['n']}: attach again")
        if (version := _version(dataset)) != container.meta.get("version"):
            raise SourceError(f"{self._what} has version {version!r} now: attach again")
        return PluginSource(self.spec, dataset, samples, container.meta["classes"])

    @property
    def _what(self) -> str:
        return f"source plug-in {self.spec.location}"

    def _made(self) -> tuple[Any, int]:
        try:
            make = plugins.find("source", self.spec.name, self.spec.code)
            with seeded(0, keep=plugins.keeps_random_state):
                dataset = make(**self.spec.params)
                samples = len(dataset)
        except MemoryError:
            raise
        except plugins.PluginError as e:
            raise SourceError(str(e)) from e
        except (Exception, SystemExit) as e:
            raise SourceError(f"{self._what} cannot be made: {type(e).__name__}: {e}{_hint(e)}") from e
        return dataset, samples


class PluginSource(Source):
    """A `Source` over a Dataset with this number of samples and these classes."""

    def __init__(self, spec: Plugin, dataset: Any, samples: int, classes: list[str]) -> None:
        self._spec, self._dataset, self._samples, self._classes = spec, dataset, samples, classes
        self._what = f"source plug-in {spec.name!r}"
        self._label = label_of(spec.columns, "")

    def __len__(self) -> int:
        return self._samples

    def read(self, index: int) -> Record:
        """As `Source.read`; raises `PluginError` if the plug-in raised, or gave an undeclared value."""
        if not 0 <= index < self._samples:
            raise IndexError(f"index {index} of a source of {self._samples} samples")
        try:
            with seeded(index, keep=plugins.keeps_random_state):
                sample = self._dataset[index]
        except OSError as e:
            if e.errno in NOT_THE_SAMPLE:
                raise
            raise SampleError(plugins.raised(self._what, e) + _hint(e)) from e
        except Exception as e:
            raise plugins.PluginError(plugins.raised(self._what, e)) from e
        columns = self._spec.columns
        if isinstance(sample, tuple | list) and len(sample) == len(columns):
            sample = dict(zip(columns, sample, strict=True))
        if not isinstance(sample, Mapping) or not columns.keys() <= sample.keys():
            given = f"the keys {', '.join(map(str, sample))}" if isinstance(sample, Mapping) else _outline(sample)
            raise plugins.PluginError(f"{self._what} declares the columns {', '.join(columns)} and gives {given}")
        record: Record = {}
        for name, kind in columns.items():
            what = f"{self._what}, column {name},"
            plane = isinstance(kind, Image | Mask)
            record[name] = _plane(what, sample[name], kind) if plane else conform(what, sample[name], kind)
        return record

    def name(self, index: int) -> str:
        return f"{self._spec.name}[{index}]"


def _hint(error: BaseException) -> str:
    """Say what to do if the sandbox refuses what a Dataset reads; empty if the file's own mode does, or nothing."""
    place = getattr(error, "filename", None) or "/"
    try:
        if isinstance(error, PermissionError) and isinstance(place, str | bytes):  # else a descriptor
            os.close(os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        if os.access(place, os.R_OK, effective_ids=True):  # Landlock does not control access(2)
            return ". The daemon lets plug-ins read only the folders of [plugins] read (--plugin-read): add its folder"
    except OSError:
        pass
    return ""


def _version(dataset: Any) -> str | None:
    """Return what the Dataset says changes with its samples; caches and checkpoints compare it."""
    version = getattr(dataset, "version", None)
    # Of a Dataset of another library it may be anything, such as a method.
    return str(version) if isinstance(version, int | float | str | np.generic) else None


def _plane(what: str, value: Any, kind: Any) -> Any:
    """An image as encoded bytes or (H, W, C) pixels; a mask as encoded bytes or (H, W) numbers."""
    if isinstance(value, bytes | bytearray | memoryview) and kind.size is None:
        return bytes(value)
    pixels = value
    if isinstance(value, Picture.Image):
        pixels = _of_picture(what, value, kind)
    elif isinstance(value, torch.Tensor):
        # tensors are (C, H, W), as in torchvision; arrays are (H, W, C)
        pixels = as_array(value.movedim(0, -1) if value.ndim == 3 else value)
    if isinstance(pixels, np.ndarray) and pixels.dtype == kind.dtype and pixels.size:
        if isinstance(kind, Image) and (pixels.ndim == 2 or pixels.shape[2:] == (1,)):
            pixels = pixels.reshape(*pixels.shape[:2], 1)
            pixels = np.repeat(pixels, 3, axis=2) if kind.is_photo else pixels
        elif isinstance(kind, Mask) and pixels.shape[2:] == (1,):
            pixels = pixels[:, :, 0]
        fits = pixels.ndim == 2 and kind.size in (None, pixels.shape)
        found = pictures.channels_last(pixels, kind) if isinstance(kind, Image) else pixels if fits else None
        if found is not None:
            return np.require(found, requirements=("C", "W"))
    raise plugins.PluginError(f"{what} declares {type(kind).__name__} {_wrong(value, kind)}")


def _of_picture(what: str, picture: Picture.Image, kind: Any) -> Any:
    try:
        if isinstance(kind, Image) and kind.is_photo:
            return pictures.rgb(picture)
        if isinstance(kind, Image) and (kind.channels != 1 or kind.dtype not in ("uint8", "uint16")):
            return picture  # which is none of that kind
        return (pictures.grey if isinstance(kind, Image) else pictures.numbers)(picture, kind.dtype)
    except pictures.OddPicture as e:
        raise plugins.PluginError(f"{what} declares {type(kind).__name__} and gives a PIL image: {e}") from e
    except OSError as e:  # it was opened, and is read only now
        if e.errno in NOT_THE_SAMPLE:
            raise
        raise SampleError(f"{what} gives a PIL image that cannot be decoded: {e}") from e


def _wrong(value: Any, kind: Any) -> str:
    """What an image or a mask is that cannot be taken, and what to give."""
    size = "any size" if kind.size is None else f"{kind.size[0]} x {kind.size[1]} pixels"
    given = described(value)
    if isinstance(value, Picture.Image):
        given = f"a PIL image of mode {value.mode} and {value.height} x {value.width} pixels"
    if isinstance(kind, Mask):
        wanted = f"a {kind.dtype} array or tensor (H, W)"
    else:
        c = "C" if kind.is_photo else kind.channels
        wanted = f"a {kind.dtype} array (H, W, {c}) or tensor ({c}, H, W)"
    dtype = as_array(value).dtype if isinstance(value, np.ndarray | torch.Tensor) else np.dtype("uint8")
    if isinstance(kind, Mask) and dtype.name == "uint16" != kind.dtype:
        wanted += ', or declare kinds.Mask(dtype="uint16")'
    elif dtype.itemsize > 1 and dtype.name in ITEM_BYTES:
        channels = value.shape[2 if isinstance(value, np.ndarray) else 0] if value.ndim == 3 else 1
        is_image = (
            isinstance(kind, Image) and value.ndim in (2, 3) and dtype.name in (*WHOLE_TOPS, "float16", "float32")
        )
        other = f"Image(channels={channels}, dtype=" if is_image else f"Array({tuple(value.shape)}, "
        wanted += f', or declare kinds.{other}"{dtype.name}")'
    else:
        wanted = f"a PIL image, {wanted}{', or bytes of a file' if kind.size is None else ''}"
    return f"of {size} and gives {given}. Give {wanted}"


def _outline(sample: Any) -> str:
    return f"{type(sample).__name__}" + (f" of {len(sample)}" if isinstance(sample, tuple | list) else "")
