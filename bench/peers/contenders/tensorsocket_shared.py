"""TensorSocket: one process runs a DataLoader (simplejpeg, cv2) and hands its batches to all jobs.

As shipped (0.0.5) it pickles the pixels of CPU tensors: each batch travels as bytes, with all batches that were
collated beside it. Its own hooks (``pack_fn``, ``unpack_fn``) mend that: here they pass names of shared memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from tensorsocket.consumer import TensorConsumer
from tensorsocket.producer import TensorProducer

from bench.peers.contenders.torch_cv2 import Photos
from bench.peers.contenders.torch_loader import loader

# At the end of an epoch each job waits until all have come to it, for ever if one has been stopped before.
_LONGER = 30

torch.multiprocessing.set_sharing_strategy("file_system")


def serve(config: dict[str, Any]) -> Any:
    """Starts the producer; what is returned keeps it alive."""
    photos = Photos(config["list"])
    photos.samples *= _LONGER
    producer = TensorProducer(loader(photos, config), pack_fn=_pack, **_ports(config))

    def produce() -> None:
        while True:
            for _ in producer:
                pass

    threading.Thread(target=produce, daemon=True).start()
    return producer


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return _Consumer(unpack_fn=_unpack, batch_size=config["batch"], **_ports(config))


class _Consumer(TensorConsumer):
    def close(self) -> None:
        os._exit(0)  # it has no end: its threads read from sockets for ever


def _ports(config: dict[str, Any]) -> dict[str, Any]:
    first = config["port"]
    return {"port": first, "ack_port": first + 1, "heart_ports": (first + 2, first + 3)}


def _pack(tensors: tuple[torch.Tensor, ...]) -> bytes:
    return bytes(ForkingPickler.dumps(tuple(tensors)))


def _unpack(data: bytes) -> Any:
    return ForkingPickler.loads(data)
