"""Headspace: how fast a training loop would run if loading took no time, measured inside the real loop.

After some steps on the stream, the loop gets held batches again for a number of steps; then the stream continues with
the batch that was due. Replays take nothing from the stream, so no sample is lost or repeated there.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from prepclient.session import Totals

log = logging.getLogger("prepclient")

_WARM_STEPS = 10  # steps that are not counted, because they compile, choose kernels and fill caches

_HELD = 2  # batches; a GPU needs memory for this many more


class Headspace:
    """One measurement, of `steps` steps on held batches; 0 measures nothing.

    They are compared with the same number of steps just before them; the ten steps before those do not count. A short
    epoch may have fewer of both. If the `device` of the batches is the CPU, the loop is assumed to compute on the
    current GPU, if it uses one.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._steps = steps
        self.extra = steps  # batches that the current epoch has in addition to those of the stream
        self.left = steps  # replays to come
        self.found: dict[str, Any] | None = None  # what was measured
        self._starts_at = 0  # the replay begins after this many batches of the stream in total
        self._counts_from = 0
        self._before: Totals | None = None
        self._held: list[Any] = []
        self._began_ns = self._copied_ns = 0
        self._images = 0

    def begin_epoch(self, totals: Totals, ends_at: int) -> None:
        """An epoch begins; it ends when `ends_at` batches have been handed out in total."""
        self._images, self._before = 0, None
        self.end_epoch()  # the loop may have left the last one in the middle
        if self.left:  # the replay must begin in this epoch
            self._counts_from = min(totals.batches + _WARM_STEPS, max(totals.batches + 1, ends_at - 1))
            self._starts_at = min(totals.batches + _WARM_STEPS + self._steps, ends_at)

    def end_epoch(self) -> None:
        """An epoch has ended, and with it a measurement under way. Frees the held batches."""
        self._held = []
        if self.left < self._steps:
            self.extra = self.left = 0

    def saw(self, batch: Any, was: Totals, now: Totals) -> None:
        """Takes note of a batch of the stream, with the totals before and after it; holds the last ones."""
        if not self.left:
            return
        if was.batches >= self._counts_from and self._before is None:
            self._before = was
        if now.batches > self._starts_at - _HELD:
            self._held.append(tree_map_only(torch.Tensor, torch.clone, batch))  # the loop may write to its own batch
            self._images += now.images - was.images

    def replay(self, totals: Totals) -> Any:
        """The next held batch; None if the next batch comes from the stream."""
        if not self._held or totals.batches < self._starts_at:
            return None
        if not self.left:
            self._end(totals)
            return None
        if not self._began_ns:
            self._finish_device()
            self._began_ns = time.monotonic_ns()
        self.left -= 1
        began_ns = time.monotonic_ns()
        batch = tree_map_only(torch.Tensor, torch.clone, self._held[self.left % len(self._held)])
        self._copied_ns += time.monotonic_ns() - began_ns
        return batch

    def _end(self, totals: Totals) -> None:
        """Finishes the measurement, when the loop asks for a batch after the last replay."""
        self._finish_device()
        loop_s = (time.monotonic_ns() - self._began_ns - self._copied_ns) / 1e9
        images = self._images * self._steps / len(self._held)
        self._held = []
        most = images / max(loop_s, 1e-9)
        now = None
        if self._before is not None and totals.images > self._before.images:  # a rank's batches may be empty
            spent = [a - b for a, b in zip(totals, self._before, strict=True)]
            loop_ns = sum(spent[Totals._fields.index(name)] for name in ("wait_ns", "copy_ns", "own_ns"))
            now = (totals.images - self._before.images) * 1e9 / loop_ns if loop_ns > 0 else None
        self.found = {
            "steps": self._steps,
            "images_per_s": round(most, 1),
            "now_images_per_s": None if now is None else round(now, 1),
            "gain_fraction": None if now is None else round(most / now - 1, 4),
        }
        than = "" if now is None else f", {100 * (most / now - 1):+.0f} % against {now:,.0f} samples/s with this one"
        log.info(
            "headspace: an infinitely fast loader would give %s samples/s%s (%d steps on held batches)",
            f"{most:,.0f}", than, self._steps,
        )  # fmt: skip

    def _finish_device(self) -> None:
        """Waits for the GPU, because only work that it has finished counts."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(self._device)
