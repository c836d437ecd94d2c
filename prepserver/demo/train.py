"""One training job of the demo: ``python -m prepserver.demo.train``, started by `prepserver.demo.jobs`.

A real training loop over a small convolutional network; what differs between the two phases is only where
batches come from. It is the one module of the server's package that uses the client, because it plays the
user's script.

Stdin brings a line of JSON (see `main`), then ``go``; whatever comes next, the end of stdin too, ends it.
Stdout says ``{"event": "ready"}``, then a report now and then, and ``{"event": "failed"}`` with the reason in one line.
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
"""On a CPU the network looks at every fourth pixel of every fourth line: training must not be the bottleneck,
as it is not beside a GPU."""


class SmallNet(nn.Module):
    """Three convolutions and a linear layer: any image size, `classes` outputs."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head = nn.Linear(32, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores, shape (batch, classes), of uint8 `images` of shape (batch, 3, height, width)."""
        scores: torch.Tensor = self.head(self.features(images.float().div_(127.5).sub_(1.0)))
        return scores


def main() -> None:
    """The job's life.

    The configuration: ``kind`` (``shared`` or ``own``), ``source`` (wire form), ``index_path``, ``classes``,
    ``runtime_dir``, ``batch_size``, ``size``, ``workers`` and ``seed``.
    """
    config = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    job = _Job(config, device)
    _say({"event": "ready", "device": device.type})
    if sys.stdin.readline().strip() == "go":
        try:
            job.run()
        except Exception as e:
            # The last line: DataLoader puts the traceback of its process before it.
            _say({"event": "failed", "why": str(e).strip().rpartition("\n")[2] or type(e).__name__})
            raise


class _Job:
    def __init__(self, config: dict[str, Any], device: torch.device) -> None:
        torch.manual_seed(config["seed"])
        self._config = config
        self._device = device
        self._model = SmallNet(config["classes"]).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.02, momentum=0.9)
        if config["kind"] == "shared":
            import prepclient  # before the clock runs, as DataLoader was

            del prepclient

    def run(self) -> None:
        began_s = time.monotonic()
        first_s: float | None = None
        images_seen, epochs, report_s = 0, 0, 0.0
        for images, labels, epoch in self._batches():
            if first_s is None:
                first_s = time.monotonic() - began_s
            loss = self._step(images, labels)
            images_seen += len(labels)
            now_s = time.monotonic()
            if now_s - report_s >= _REPORT_S or epoch != epochs:
                report_s, epochs = now_s, epoch
                _say({
                    "event": "report", "at_s": now_s, "images": images_seen, "loss": float(loss), "epochs": epochs,
                    "first_batch_s": first_s,
                })  # fmt: skip
            # Asked between batches: a thread that waits on stdin would hold its lock when DataLoader forks.
            if select.select([sys.stdin], [], [], 0)[0]:
                return

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cpu":
            images = images[:, :, ::_EVERY_PIXEL_CPU, ::_EVERY_PIXEL_CPU]
        loss = nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        self._optimizer.step()
        return loss.detach()

    def _batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """Images (batch, 3, size, size) uint8 and labels, on the device, with the number of whole epochs before."""
        make = self._shared if self._config["kind"] == "shared" else self._own
        loader = make()
        epoch = 0
        while True:
            for images, labels in loader:
                yield images, labels, epoch
            epoch += 1

    def _shared(self) -> Any:
        from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop
        from prepserver.pipeline.sources import source_from_wire

        return PrepClient(
            source_from_wire(self._config["source"]), [RandomResizedCrop(self._config["size"]), RandomHorizontalFlip()],
            batch_size=self._config["batch_size"], shuffle=True, seed=0, device=self._device,
            runtime_dir=self._config["runtime_dir"],
        )  # fmt: skip

    def _own(self) -> Any:
        from prepserver.demo.loader import Photos, make_loader

        photos = Photos(self._config["source"], Path(self._config["index_path"]), self._config["size"])
        loader = make_loader(photos, self._config["batch_size"], self._config["workers"], self._config["seed"])
        return _OnDevice(loader, self._device)


class _OnDevice:
    """A DataLoader's (batch, size, size, 3) images as (batch, 3, size, size), on the device."""

    def __init__(self, loader: Any, device: torch.device) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in self._loader:
            yield (
                images.permute(0, 3, 1, 2).to(self._device, non_blocking=True),
                labels.to(self._device, non_blocking=True),
            )


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
