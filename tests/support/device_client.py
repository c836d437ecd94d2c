"""A client that goes by way of a device, on a machine without one."""

from __future__ import annotations

from typing import Any

import torch

from prepclient import PrepClient
from tests.support.fake_device import FakeDevice


class DeviceClient(PrepClient):
    """Its batches have arrived when `fake` has run.

    Attributes:
        fake: The device.
    """

    def __init__(self, *arguments: Any, fake: FakeDevice | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._makers.device = torch.device("cuda")
        self._makers.engine = self.fake = fake or FakeDevice()
