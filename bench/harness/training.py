"""What a job does with its batches if it trains: a step of a ResNet in bf16 and channels_last, on random weights."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from bench.harness import resnet
from bench.harness.contender import SIZE

cuda: Any = torch.cuda  # typed in part only

_CLASSES = 1000
_AHEAD = 2
_WARM_UP = 5
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Training:
    """Trains a model.

    Args:
        model: ``resnet18`` or ``resnet50``.
        device: Where. On a GPU it first takes some steps, in which cuDNN chooses its kernels.
        batch: The usual number of images in a batch.
    """

    def __init__(self, model: str, device: str, batch: int) -> None:
        self._device = torch.device(device)
        if self._on_gpu:  # other jobs may need what an earlier model of this process had
            gc.collect()
            cuda.empty_cache()
        torch.backends.cudnn.benchmark = True
        make: Callable[[int], Any] = getattr(resnet, model)
        self._model: Any = make(_CLASSES).to(self._device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._labels = (torch.arange(batch) % _CLASSES).to(self._device)
        self._mean, self._std = (torch.tensor(values, device=self._device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
        self._marks = deque[Any]()
        if self._on_gpu:
            images = torch.zeros(batch, SIZE, SIZE, 3, dtype=torch.uint8)
            for _ in range(_WARM_UP):
                self(images)
            cuda.synchronize()

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def __call__(self, images: torch.Tensor) -> None:
        """A step on uint8 images, (n, 3, H, W) or (n, H, W, 3), on the CPU or on the device.

        At most two steps are ahead of the GPU, as in a loop that logs its loss: else all batches of a window could be
        asked for before the first one is computed.
        """
        if images.shape[-1] == 3:
            images = images.permute(0, 3, 1, 2)
        pixels = (images.to(self._device, non_blocking=True).float() - self._mean) / self._std
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._model(pixels), self._labels[: len(images)])
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._on_gpu:
            mark = cuda.Event()
            mark.record()
            self._marks.append(mark)
            if len(self._marks) > _AHEAD:
                self._marks.popleft().synchronize()
