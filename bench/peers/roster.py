"""The contenders of the cases `peers` and `versus`: their names, what they need, read, and do to pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OWN = "own"
"""The venv of contenders that need no more than prepserver's own packages: the interpreter that runs the benchmark."""


@dataclass(frozen=True, slots=True)
class Form:
    """The data in a contender's own form, written before anything is timed.

    Attributes:
        module: In `contenders`; it has ``build``.
        venv: The venv whose interpreter writes it.
        options: More of the configuration.
        once: It holds each photo once, and its reader repeats them; other forms hold every sample of the list.
    """

    module: str
    venv: str
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False


FORMS = {
    "packed": Form("prepserver", OWN),
    "pixels": Form("prepserver", OWN, {"form": "pixels"}),
    "ffcv-jpg90": Form("ffcv_loader", "ffcv", {"written": "jpg90"}, once=True),
    "ffcv-mix": Form("ffcv_loader", "ffcv", {"written": "mix"}, once=True),
    "ffcv-raw": Form("ffcv_loader", "ffcv", {"written": "raw"}, once=True),
    "tar": Form("webdataset_tar", "torch"),
    "litdata": Form("litdata_stream", "torch"),
    "mds": Form("mosaic_stream", "mosaic"),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """One contender with its settings.

    Attributes:
        name: Its name in tables.
        module: In `contenders`.
        antialiased: Whether shrinking averages over all pixels of the crop: ``yes``, ``no``, or how.
        venv: A file in `requirements`, or `OWN`.
        needs: Modules that its interpreter must find.
        form: A key of `FORMS`; None reads the photos as they are.
        options: More of the configuration.
        jobs: The number of jobs that take batches at the same time.
        serves: A process of its own serves the jobs; its module has ``serve``.
    """

    name: str
    module: str
    antialiased: str
    venv: str = OWN
    needs: tuple[str, ...] = ()
    form: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    serves: bool = False


_CV2 = ("cv2", "simplejpeg")
_TORCH = ("torch", *_CV2)

PEERS = {
    "prepserver": Peer("prepserver", "prepserver", "yes"),
    "packed": Peer("prepserver, packed", "prepserver", "yes", form="packed"),
    "packed_lent": Peer("prepserver, packed, lent", "prepserver", "yes", form="packed", options={"lends": True}),
    "pixels": Peer("prepserver, packed pixels", "prepserver", "yes", form="pixels"),
    "pixels_lent": Peer("prepserver, packed pixels, lent", "prepserver", "yes", form="pixels", options={"lends": True}),
    "torch_pillow": Peer("DataLoader, Pillow", "torch_pillow", "yes"),
    "torch_simplejpeg": Peer("DataLoader, simplejpeg, torch resize", "torch_simplejpeg", "yes"),
    "torch_cv2": Peer("DataLoader, simplejpeg, cv2", "torch_cv2", "no", "torch", _TORCH),
    "tf_data": Peer("tf.data", "tf_data", "no", "tensorflow", ("tensorflow",)),
    "tf_data_aa": Peer("tf.data, antialias", "tf_data", "yes", "tensorflow", ("tensorflow",),
                       options={"antialias": True}),
    "dali": Peer("DALI (CPU)", "dali", "yes", "dali", ("nvidia.dali",), options={"antialias": True}),
    "dali_plain": Peer("DALI (CPU), antialias off", "dali", "no", "dali", ("nvidia.dali",),
                       options={"antialias": False}),
    "ffcv_jpg90": Peer("FFCV, JPEG 90", "ffcv_loader", "area", "ffcv", ("ffcv",), "ffcv-jpg90"),
    "ffcv_mix": Peer("FFCV, rn50 500/0.5/90", "ffcv_loader", "area", "ffcv", ("ffcv",), "ffcv-mix"),
    "ffcv_raw": Peer("FFCV, raw pixels", "ffcv_loader", "area", "ffcv", ("ffcv",), "ffcv-raw"),
    "grain": Peer("Grain", "grain_loader", "no", "grain", ("grain", *_CV2)),
    "spdl": Peer("SPDL", "spdl_loader", "no", "spdl", ("spdl.pipeline", *_CV2)),
    "webdataset": Peer("WebDataset", "webdataset_tar", "no", "torch", ("webdataset", *_TORCH), "tar"),
    "litdata": Peer("LitData", "litdata_stream", "no", "torch", ("litdata", *_TORCH), "litdata"),
    "mosaic": Peer("Mosaic streaming", "mosaic_stream", "no", "mosaic", ("streaming", *_TORCH), "mds"),
    "prepserver_4": Peer("prepserver", "prepserver", "yes", jobs=4),
    "lent_4": Peer("prepserver, lent", "prepserver", "yes", options={"lends": True}, jobs=4),
    "torch_cv2_4": Peer("DataLoader, simplejpeg, cv2", "torch_cv2", "no", "torch", _TORCH, jobs=4),
    "tensorsocket_4": Peer("TensorSocket, mended", "tensorsocket_shared", "no", "torch", ("tensorsocket", *_TORCH),
                           jobs=4, serves=True),
    "tf_service_4": Peer("tf.data service, shared cache", "tf_service", "no", "tensorflow", ("tensorflow",), jobs=4,
                         serves=True),
}  # fmt: skip
"""In the order in which they run. ``area``: cv2's INTER_AREA, which averages whole pixels when it shrinks."""
