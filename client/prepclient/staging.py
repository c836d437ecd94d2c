"""Makes the stage of each attachment: on the host, or on a device whose memory all attachments use in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepclient.device import DeviceStage, Engine
from prepclient.feed import Feed
from prepclient.finish import Finish, RowLook
from prepclient.session import Session
from prepclient.spec import VALID, Spec
from prepclient.stages import CudaStage, HostStage, Stage


class Staging:
    """How the rows of a client become tensors, whatever feed they come from.

    Args:
        spec: What is read.
        device: Where batches go.
        looks: How the rows look, for each column of more than one number a row.
        finish: What is computed on top of images.
        zero_copy: Lend memory instead of handing out fresh tensors.
        has_valid: Whether batches have the field ``valid``.

    Attributes:
        device: As above.
        engine: Of the device; None for CUDA's.
    """

    def __init__(
        self,
        spec: Spec,
        device: torch.device,
        looks: Sequence[RowLook],
        finish: Finish,
        *,
        zero_copy: bool,
        has_valid: bool,
    ) -> None:
        self.device = device
        self.engine: Engine[Any] | None = None
        self._looks = looks
        self._finish = finish
        self._zero_copy = zero_copy
        self._max_batch = spec.shape.batch_size  # a run of batches may end in a smaller one, never in a larger one
        self._small = {field.name: getattr(torch, field.dtype) for field in spec.pipeline.fields if not field.shape}
        if has_valid:
            self._small[VALID] = torch.bool
        self._on_device: DeviceStage | None = None

    def stage(self, session: Session, feed: Feed) -> Stage:
        """The stage of a new attachment; that of the one before is closed."""
        if self.device.type == "cpu":
            return HostStage(session, feed, self._looks, self._finish, self._max_batch, zero_copy=self._zero_copy)
        if self._on_device is None or not self._on_device.reset():
            self._on_device = DeviceStage(
                self.device, self._looks, self._max_batch, finish=self._finish, small=self._small,
                zero_copy=self._zero_copy, engine=self.engine,
            )  # fmt: skip
        return CudaStage(session, feed, self._on_device)

    def close(self) -> None:
        """Gives the device's memory back. Idempotent."""
        stage, self._on_device = self._on_device, None
        if stage is not None:
            stage.close()
