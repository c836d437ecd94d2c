"""Who takes part in `peers.py`: what each is called, what it needs, what it reads, what it does to pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OWN = "own"
"""The venv of those that need nothing but prepserver's own packages: the interpreter that runs the benchmark."""


@dataclass(frozen=True, slots=True)
class Form:
    """Data that a contender wants written in a way of its own, before anything is timed.

    Attributes:
        module: In `contenders`; has ``build``.
        venv: Whose interpreter writes it.
        options: More of the configuration.
        once: It holds each photo once, and its reader repeats them; others hold every sample of the list.
    """

    module: str
    venv: str
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False


FORMS = {
    "packed": Form("prepserver", OWN),
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
        name: In tables.
        module: In `contenders`.
        antialiased: Whether shrinking averages over all pixels of the crop: ``yes``, ``no``, or how.
        venv: A name in `requirements`, or `OWN`.
        needs: Modules that its interpreter must find.
        form: Of `FORMS`; None reads the photos as they are.
        options: More of the configuration.
        jobs: How many take batches at the same time.
        serves: Its module has a process of its own that serves the jobs.
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


@dataclass(frozen=True, slots=True)
class Target:
    """What the project asks for: a quotient of one figure of two contenders, taken within a round.

    Attributes:
        figure: Key of a cell.
        of: Two keys of `PEERS`; the second is None for the figure itself.
        bound: A floor, or a ceiling where `above` is False.
    """

    text: str
    figure: str
    of: tuple[str, str | None]
    bound: float
    above: bool = True


TARGETS = [
    Target("prepserver / DataLoader, simplejpeg, cv2", "steady_per_s", ("prepserver", "torch_cv2"), 1.25),
    Target("prepserver / DataLoader, Pillow", "steady_per_s", ("prepserver", "torch_pillow"), 1.9),
    Target("prepserver / DALI", "steady_per_s", ("prepserver", "dali"), 1.5),
    Target("prepserver / Grain", "steady_per_s", ("prepserver", "grain"), 1.25),
    Target("prepserver / SPDL", "steady_per_s", ("prepserver", "spdl"), 1.6),
    Target("prepserver / FFCV, JPEG 90", "steady_per_s", ("prepserver", "ffcv_jpg90"), 1.0),
    Target("prepserver / tf.data", "steady_per_s", ("prepserver", "tf_data"), 1.0),
    Target("packed / plain files", "steady_per_s", ("packed", "prepserver"), 1.25),
    Target("packed / FFCV, rn50 500/0.5/90", "steady_per_s", ("packed", "ffcv_mix"), 1.0),
    Target("packed, lent / FFCV, raw pixels", "steady_per_s", ("packed_lent", "ffcv_raw"), 0.85),
    Target("packed / FFCV, raw pixels", "steady_per_s", ("packed", "ffcv_raw"), 0.85),
    Target("bytes: packed / FFCV, raw pixels", "kb_per_image", ("packed", "ffcv_raw"), 1 / 6, above=False),
    Target("4 jobs in sum: prepserver, lent / TensorSocket", "steady_per_s", ("lent_4", "tensorsocket_4"), 1.5),
    Target("4 jobs in sum: prepserver / TensorSocket", "steady_per_s", ("prepserver_4", "tensorsocket_4"), 1.5),
    Target("4 jobs in sum: prepserver / tf.data service", "steady_per_s", ("prepserver_4", "tf_service_4"), 1.9),
    Target("4 jobs in sum: prepserver / 4 DataLoaders", "steady_per_s", ("prepserver_4", "torch_cv2_4"), 5.0),
    Target("ms more to wait between epochs", "gap_ms", ("prepserver", None), 5.0, above=False),
    Target("s to the first batch", "first_batch_s", ("prepserver", None), 0.5, above=False),
    Target("MiB of daemon and workers, ring apart", "server_own_mib", ("prepserver", None), 300.0, above=False),
]
