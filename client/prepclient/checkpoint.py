"""What a checkpoint holds: a few numbers, that say which stream of rows it is of and where on it the job stands."""

from __future__ import annotations

from typing import Any, NamedTuple

from prepclient.checks import whole
from prepclient.errors import InvalidSpec
from prepclient.feed import Listing, Start

_VERSION = 1
_MOST = 2**62


class Checkpoint(NamedTuple):
    """A place on a stream of rows.

    Attributes:
        epoch: Number of the epoch.
        epoch_start: Where it began; None if nothing was read before the checkpoint.
        position: Where all ranks of all shards stand; None likewise.
        began: Where epoch 0 began, or would have begun; negative where a later epoch joined a stream early.
        listing: By which positions count, if it is known.
    """

    epoch: int
    epoch_start: int | None
    position: int | None
    began: int | None
    listing: Listing | None

    @property
    def start(self) -> Start:
        """Where to go on."""
        return Start(self.epoch, self.position, self.epoch_start)

    def to_state(self, digest: str) -> dict[str, Any]:
        """As `PrepClient.state_dict` gives it.

        Args:
            digest: Names the stream of rows.
        """
        return {
            "version": _VERSION,
            "spec": digest,
            "epoch": self.epoch,
            "epoch_start": self.epoch_start,
            "position": self.position,
            "start": self.began,
            "source": self.listing.state() if self.listing else None,
        }

    @classmethod
    def from_state(cls, state: object, digest: str) -> Checkpoint:
        """The inverse of `to_state`.

        Raises:
            InvalidSpec: Not such a state, or one of another stream.
        """
        names = {"version", "spec", "epoch", "epoch_start", "position"}
        # "source" and "start" came later: what was saved before has none
        if not isinstance(state, dict) or set(state) - {"source", "start"} != names or state["version"] != _VERSION:
            raise InvalidSpec(f"not a state of a PrepClient (version {_VERSION}): {state!r}", "state_dict")
        try:
            epoch = whole("epoch", state["epoch"], 0, _MOST)
            epoch_start, position = state["epoch_start"], state["position"]
            if (epoch_start, position) != (None, None):
                epoch_start = whole("epoch_start", epoch_start, 0, _MOST)
                position = whole("position", position, 0, _MOST)
            began = None if state.get("start") is None else whole("start", state["start"], -_MOST, _MOST)
        except InvalidSpec as e:
            raise InvalidSpec(f"not a state of a PrepClient, by its numbers: {state!r}", "state_dict") from e
        try:
            source = state.get("source")
            listing = None if source is None else Listing.from_state(source)
        except (LookupError, TypeError, ValueError) as e:
            raise InvalidSpec(f"not a state of a PrepClient, by its source: {state!r}", "state_dict") from e
        if state["spec"] != digest:
            raise InvalidSpec(
                f"the state was taken from another stream of rows (spec {state['spec']}, this is {digest}): "
                "source, shuffle, seed, ops and views must be the same; ranks and workers may differ, and batch_size "
                "and num_shards too unless whole batches are shuffled",
                "state_dict",
            )
        return cls(epoch, epoch_start, position, began, listing)
