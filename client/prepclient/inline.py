"""A feed that makes the same rows in this process, without a daemon.

It is for debugging, for notebooks, and for tests that compare a daemon's rows with its own. Only this module imports
`prepserver.inline`, and only if ``inline=True``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from prepclient.chain import RingChain
from prepclient.errors import InvalidSpec, MemoryRefused, SourceUnavailable
from prepclient.feed import Feed, ListingIdentity, ResumePoint, Until
from prepclient.rows import DTYPES, MappedRing
from prepclient.session import Session, Totals
from prepclient.spec import Spec
from prepclient.threads import in_one_thread
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import create_segment
from prepserver.pipeline.batches import batch_rows, check_start
from prepserver.pipeline.errors import SpecError
from prepserver.protocol.layout import RingLayout, ring_fields

_ROUNDS = 4  # rounds of batches in the ring; a device holds the rows of up to three batches


class InlineFeed(Feed):
    """Fills a private ring, one batch per wait; `map_rows` maps it for a device.

    Raises:
        SourceUnavailable: The dataset is missing, empty or unreadable.
        InvalidSpec: A plug-in cannot be loaded.
        MemoryRefused: This process lacks memory for the rows.
    """

    def __init__(
        self, spec: Spec, start: ResumePoint, on_scanning: Callable[[int], None],
        map_rows: Callable[[int, RingLayout], MappedRing] | None = None, plugins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        from prepserver import inline  # only for inline=True

        try:
            with torch.device("cpu"):  # not the user's default device, where ops would make their constants
                self._maker = inline.InlineMaker(
                    spec.source, spec.pipeline, spec.shuffle, spec.seed, on_scanning, spec.shape.shard,
                    batch_rows(spec.shape.batching, spec.shape.batch_size), plugins,
                )  # fmt: skip
        except inline.SourceError as e:
            raise SourceUnavailable(str(e)) from e
        except (inline.PluginError, SpecError) as e:
            raise InvalidSpec(str(e), "plugins") from e
        listing = self._maker.listing
        self.listing = ListingIdentity(listing.samples, listing.content_digest, listing.digest, self._maker.code)
        self.num_classes, self.classes = listing.num_classes, list(listing.classes)
        shard = spec.shape.shard
        self.epoch_start = self.position = (start.first or 0) + start.epoch * shard.positions(listing.samples)
        if start.first and shard.count > 1:
            raise InvalidSpec(f"start = {start.first}: with shards, an epoch 0 begins at position 0 only", "start")
        if start.first and start.position is None:
            try:
                check_start(self._maker.order, start.first, start.epoch)
            except ValueError as e:
                raise InvalidSpec(str(e), "start") from e
        if start.epoch_start is not None and start.position is not None:
            try:
                place = shard.from_all(start.epoch, start.epoch_start, start.position, listing.samples)
                self.epoch_start, self.position = place
            except ValueError as e:
                raise InvalidSpec(str(e), "num_shards") from e
        rows = _ROUNDS * spec.shape.batch_size * spec.shape.world_size
        self.layout = RingLayout(rows, ring_fields(spec.pipeline.fields))
        made = _made(self.layout, map_rows)
        self._arrays = made.writable_arrays()
        self.rows = RingChain(made)

    def wait(self, session: Session, timeout_s: float, until: Until) -> None:
        """See `Feed`. Fills only rows that the session has released."""
        while not until.is_met():
            if session.upcoming.stop <= session.released_upto + self.layout.rows:
                self._fill(session)

    def about_job(self, totals: Totals, since_ns: int | None = None) -> dict[str, Any]:
        """See `Feed`."""
        spent_s = [ns / 1e9 for ns in (totals.wait_ns, totals.copy_ns, totals.own_ns)]
        counts = totals.batches, totals.images, totals.bad
        return {"sharing_factor": 1.0, "verdict": self._maker.verdict(*counts, *spent_s)}

    def _fill(self, session: Session) -> None:
        from prepserver import inline

        batch = session.upcoming
        try:
            with torch.device("cpu"):
                bad = in_one_thread(self._maker.fill, batch.start, batch.stop, self._arrays)
        except inline.SourceError as e:
            raise SourceUnavailable(str(e)) from e
        except inline.LaneError as e:
            raise InvalidSpec(f"the rows of this pipeline cannot be made: {e}", "pipeline") from e.__cause__
        session.ready(batch.stop, bad)


def _made(layout: RingLayout, map_rows: Callable[[int, RingLayout], MappedRing] | None) -> MappedRing:
    """Makes a private ring: for a device a segment, as a daemon's ring is, else plain memory."""
    try:
        if map_rows is None:
            dense = [torch.empty((layout.rows, *f.shape), dtype=DTYPES[f.dtype], device="cpu") for f in layout.dense]
            return MappedRing(layout, dense, {f.name: np.empty(layout.rows, f.dtype) for f in layout.scalars})
        fd = create_segment("prepclient-inline", layout.nbytes)
        try:
            MemoryMap(fd, 0, layout.nbytes, writable=True).populate()
            return map_rows(fd, layout)
        finally:
            os.close(fd)  # the mapping keeps the memory
    except RuntimeError as e:  # of torch, or a SegmentError
        text = f"this process lacks {layout.nbytes >> 20} MiB for the rows of {_ROUNDS} batches: lower batch_size"
        raise MemoryRefused(text) from e
