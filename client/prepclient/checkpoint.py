"""A checkpoint: a few numbers that name a stream of rows and the job's position on it."""

from __future__ import annotations

from typing import Any

from prepclient.errors import InvalidSpec
from prepclient.feed import Listing, Start
from prepserver.pipeline.checks import integer

_VERSION = 1
_MOST = 2**62


def state_of(
    digest: str, place: Start, began: int | None, listing: Listing | None, device_ops: str = ""
) -> dict[str, Any]:
    """As `PrepClient.state_dict` gives it.

    `digest` names the stream of rows, `device_ops` the ops on batches. `began` is where epoch 0 began, or would have
    begun: negative if a later epoch began before that many samples.
    """
    state = {
        "version": _VERSION,
        "spec": digest,
        "epoch": place.epoch,
        "epoch_start": place.epoch_start,
        "position": place.position if place.checkpoint is None else place.checkpoint,
        "start": began,
        "source": listing.state() if listing else None,
    }
    return state | ({"device_ops": device_ops} if device_ops else {})


def read_state(state: object, digest: str) -> tuple[Start, int | None, Listing | None, str]:
    """The place, `began`, listing and device ops of a state.

    Raises:
        InvalidSpec: Not such a state, or one of another stream.
    """
    names = {"version", "spec", "epoch", "epoch_start", "position"}
    # older states have no "source" and no "start"
    others = {"source", "start", "device_ops"}
    if not isinstance(state, dict) or set(state) - others != names or state["version"] != _VERSION:
        raise InvalidSpec(f"not a state of a PrepClient (version {_VERSION}): {state!r}", "state_dict")
    try:
        place = Start(integer("epoch", state["epoch"], 0, _MOST))
        if (state["epoch_start"], state["position"]) != (None, None):  # else it was taken before the first use
            at = (integer(name, state[name], 0, _MOST) for name in ("position", "epoch_start"))
            place = Start(place.epoch, *at)
        began = None if state.get("start") is None else integer("start", state["start"], -_MOST, _MOST)
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
    return place, began, listing, str(state.get("device_ops", ""))
