"""A training process that leaves with copies under way: ``leaving_job.py close|drop|exit``. It says what happens."""

from __future__ import annotations

import sys

from prepclient import RandomResizedCrop, SyntheticImages
from prepclient.pinning import PinDriver
from tests.support.device_client import DeviceClient
from tests.support.fake_device import FakeDevice


def say(word: str) -> None:
    """One line."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


class Telling(FakeDevice):
    """Says when memory is locked, and unlocked, and when the copies from it have ended."""

    def register(self, address: int, nbytes: int) -> int:
        say("locked")
        return 0

    def unregister(self, address: int) -> int:
        assert not self.queues["copies"]
        say("unlocked")
        return 0

    def describe(self, code: int) -> str:
        return str(code)

    def pin_driver(self) -> PinDriver:
        return self

    def synchronize(self) -> None:
        if self.queues["copies"]:
            super().synchronize()
            say("drained")


def main() -> None:
    """Takes one batch."""
    client = DeviceClient(SyntheticImages(200, 32), [RandomResizedCrop(16)], batch_size=8, inline=True, fake=Telling())
    batches = iter(client)
    next(batches)
    feed = client._attachment.feed
    assert feed is not None
    for link in feed.rows.links:
        assert link.rows._pin is not None
        assert link.rows._pin.wait()
    if sys.argv[1] == "close":
        client.close()
    elif sys.argv[1] == "drop":
        del batches, client


if __name__ == "__main__":
    main()
