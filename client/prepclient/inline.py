"""A feed that makes the same rows in this process, without a daemon.

It serves debugging, notebooks, and tests that compare a daemon's rows with it. Only this module imports
`prepserver.inline`, and only when ``inline=True``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from prepclient.chain import RingChain
from prepclient.errors import InvalidSpec, SourceUnavailable
from prepclient.feed import Feed, Listing, Start
from prepclient.rows import DTYPES, Rows
from prepclient.session import Session, Totals
from prepclient.spec import Spec
from prepserver.memory.mapping import Mapping
from prepserver.memory.segment import create_segment
from prepserver.pipeline.batches import batch_rows
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol.layout import RingLayout, ring_fields

_ROUNDS = 4  # a device holds up to three batches


def names_of(source: SourceSpec) -> tuple[str, list[str]]:
    """The current content digest of a source, and the names of its classes by label, if they have names.

    Raises:
        SourceUnavailable: This process cannot read the source.
    """
    from prepserver import inline

    try:
        return inline.class_names(source)
    except inline.SourceError as e:
        raise SourceUnavailable(str(e)) from e


class InlineFeed(Feed):
    """Fills a private ring of four rounds, one batch at each wait.

    Args:
        spec: The checked request.
        start: Where to begin.
        on_scanning: Called with the number of samples found while the source is listed.
        map_rows: Maps the ring for a device; None without one.
        plugins: Plug-ins to load into this process.

    Raises:
        SourceUnavailable: The dataset is missing, empty or unreadable.
        InvalidSpec: A plug-in cannot be loaded.
    """

    def __init__(
        self,
        spec: Spec,
        start: Start,
        on_scanning: Callable[[int], None],
        map_rows: Callable[[int, RingLayout], Rows] | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        from prepserver import inline  # only for inline=True

        try:
            with torch.device("cpu"):  # the ops make constants, which must not be on the user's default device
                self._maker = inline.InlineMaker(
                    spec.source, spec.pipeline, spec.shuffle, spec.seed, on_scanning, spec.shape.shard,
                    batch_rows(spec.shape.batching, spec.shape.batch_size), plugins,
                )  # fmt: skip
        except inline.SourceError as e:
            raise SourceUnavailable(str(e)) from e
        except (inline.PluginError, SpecError) as e:
            raise InvalidSpec(str(e), "plugins") from e
        maker = self._maker
        self.listing = Listing(maker.samples, maker.content_digest, maker.digest, maker.code)
        self.num_classes = self._maker.num_classes
        shard = spec.shape.shard
        self.epoch_start = self.position = (start.first or 0) + start.epoch * shard.positions(self._maker.samples)
        if start.first and shard.count > 1:
            raise InvalidSpec(f"start = {start.first}: the machines of a run begin at position 0", "start")
        if start.first and start.position is None:
            try:
                self._maker.check_start(start.first, start.epoch)
            except ValueError as e:
                raise InvalidSpec(str(e), "start") from e
        if start.epoch_start is not None and start.position is not None:
            try:
                place = shard.place(start.epoch, start.epoch_start, start.position, self._maker.samples)
                self.epoch_start, self.position = place
            except ValueError as e:
                raise InvalidSpec(str(e), "num_shards") from e
        rows = _ROUNDS * spec.shape.batch_size * spec.shape.world_size
        self.layout = RingLayout(rows, ring_fields(spec.pipeline.fields))
        made = _made(self.layout, map_rows)
        self._arrays = made.writable_arrays()
        self.rows = RingChain(made)

    def wait(
        self,
        session: Session,
        timeout_s: float,
        until: Callable[[], bool],
        pace_s: Callable[[], float | None] = lambda: None,
        held_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """See `Feed`. It fills only rows that the session has released."""
        while not until():
            if session.upcoming.stop <= session.released_upto + self.layout.rows:
                self._fill(session)

    def about_job(self, totals: Totals, since_ns: int | None = None) -> dict[str, Any]:
        """See `Feed`."""
        spent_s = [ns / 1e9 for ns in (totals.wait_ns, totals.copy_ns, totals.own_ns)]
        return {"sharing_factor": 1.0, "verdict": self._maker.verdict(totals.batches, totals.images, *spent_s)}

    def _fill(self, session: Session) -> None:
        batch = session.upcoming
        with torch.device("cpu"):
            bad = self._maker.fill(batch.start, batch.stop, self._arrays)
        session.ready(batch.stop, bad)


def _made(layout: RingLayout, map_rows: Callable[[int, RingLayout], Rows] | None) -> Rows:
    """Makes a private ring; for a device it is a segment, as a daemon's is."""
    if map_rows is None:
        dense = [torch.empty((layout.rows, *f.shape), dtype=DTYPES[f.dtype], device="cpu") for f in layout.dense]
        return Rows(layout, dense, {f.name: np.empty(layout.rows, f.dtype) for f in layout.scalars})
    fd = create_segment("prepclient-inline", layout.nbytes)
    try:
        Mapping(fd, 0, layout.nbytes, writable=True).populate(write=True)
        return map_rows(fd, layout)
    finally:
        os.close(fd)  # the mapping keeps the memory
