"""The second process of the GPU tests: ``other_process.py FD NBYTES sum|copy``.

It maps the segment, page-locks it, says ``locked`` and waits for a line; then `sum` prints the sum of the
bytes as the GPU got them and unlocks, and `copy` copies for ever, until it is killed.
"""

from __future__ import annotations

import sys

import torch

from prepclient.pinning import HostPin, open_driver
from tests.gpu.segment import Segment


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    segment = Segment(int(sys.argv[1]), int(sys.argv[2]))
    on_gpu = torch.empty(segment.nbytes, dtype=torch.uint8, device="cuda")
    pin = HostPin(segment.address, segment.nbytes, open_driver(on_gpu.device))
    pin.start()
    say("locked" if pin.wait() else f"refused: {pin.reason}")
    if sys.argv[3] == "sum":
        sys.stdin.readline()
        on_gpu.copy_(segment.bytes, non_blocking=True)
        say(str(int(on_gpu.sum(dtype=torch.int64))))
        pin.close()
        say("unlocked")
        return
    while True:
        for _ in range(64):
            on_gpu.copy_(segment.bytes, non_blocking=True)
        say("copying")


main()
