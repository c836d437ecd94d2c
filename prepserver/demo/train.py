"""One training job of the demo: ``python -m prepserver.demo.train``, started by `prepserver.demo.processes`.

A real training loop over a small convolutional network. The two phases differ only in where the batches come from.

It reads a line of JSON from stdin (see `main`), then ``go``; anything after that, including the end of stdin, ends it.
It writes lines of JSON to stdout: the device when the job is ready, then reports, and the reason if it fails.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

_REPORT_S = 0.2
_EVERY_PIXEL_CPU = 4
"""On a CPU the network sees every fourth pixel of every fourth line, so that training is not the bottleneck, as it is
not on a GPU either."""


def main() -> None:
    """Runs the job.

    The configuration: ``kind`` (``shared`` or ``own``), ``source`` (wire form), ``index_path``, ``classes``,
    ``runtime_dir``, ``batch_size``, ``size``, ``workers`` and ``seed``.
    """
    config = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, config["classes"]),
    ).to(device)
    if config["kind"] == "shared":
        __import__("prepclient")  # before the clock starts, like DataLoader
    _say({"device": device.type})
    if sys.stdin.readline().strip() == "go":
        try:
            _train(model, config, device)
        except Exception as e:
            # The last line, after the traceback that DataLoader includes.
            _say({"failed": str(e).strip().rpartition("\n")[2] or type(e).__name__})
            raise


def _train(model: nn.Module, config: dict[str, Any], device: torch.device) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    began_s = time.monotonic()
    first_s, report_s, images_seen = 0.0, 0.0, 0
    for images, labels in _batches(config, device):
        first_s = first_s or time.monotonic() - began_s
        if device.type == "cpu":
            images = images[:, :, ::_EVERY_PIXEL_CPU, ::_EVERY_PIXEL_CPU]
        loss = nn.functional.cross_entropy(model(images.float().div_(127.5).sub_(1.0)), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        images_seen += len(labels)
        now_s = time.monotonic()
        if now_s - report_s >= _REPORT_S:
            report_s = now_s
            _say({"at_s": now_s, "images": images_seen, "loss": float(loss), "first_batch_s": first_s})
        # Polled between batches: a thread that reads stdin would hold a lock while DataLoader forks.
        if select.select([sys.stdin], [], [], 0)[0]:
            return


def _batches(config: dict[str, Any], device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images (batch, 3, size, size) uint8 and labels, on the device, without end."""
    is_shared = config["kind"] == "shared"
    loader = _shared(config, device) if is_shared else _own(config)
    while True:
        for images, labels in loader:
            first = images if is_shared else images.permute(0, 3, 1, 2)
            yield first.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _shared(config: dict[str, Any], device: torch.device) -> Any:
    from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop
    from prepserver.pipeline.sources import source_from_wire

    return PrepClient(
        source_from_wire(config["source"]), [RandomResizedCrop(config["size"]), RandomHorizontalFlip()],
        batch_size=config["batch_size"], shuffle=True, seed=0, device=device, runtime_dir=config["runtime_dir"],
    )  # fmt: skip


def _own(config: dict[str, Any]) -> Any:
    from prepserver.demo.loader import Photos, make_loader

    photos = Photos(config["source"], Path(config["index_path"]), config["size"])
    return make_loader(photos, config["batch_size"], config["workers"], config["seed"])


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
