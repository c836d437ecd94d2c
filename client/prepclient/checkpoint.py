"""Checkpoints: a dict that names a stream of rows and the job's position in it."""

from __future__ import annotations

from typing import Any

from prepclient.errors import InvalidSpec
from prepclient.feed import ListingIdentity, ResumePoint
from prepclient.session import Session
from prepserver.pipeline.checks import integer

_VERSION = 1
_MOST = 2**62


def place_of(session: Session) -> ResumePoint:
    """The first batch that was not handed out."""
    epoch_start, position, rounds = session.place
    return ResumePoint(session.epoch, position, epoch_start, rounds, session.position)


def state_of(
    digest: str, place: ResumePoint, began: int | None, listing: ListingIdentity | None, device_ops: str = ""
) -> dict[str, Any]:
    """The state that `PrepClient.state_dict` returns.

    `digest` names the stream of rows, and `device_ops` the ops on batches. `began` is the position at which epoch 0
    began or would have begun; it is negative if a job began near position 0 with a later epoch.
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


def read_state(state: object, digest: str) -> tuple[ResumePoint, int | None, ListingIdentity | None, str]:
    """The place, `began`, listing and device ops of a `state_of`; raises `InvalidSpec` if it is none of this stream."""
    names = {"version", "spec", "epoch", "epoch_start", "position"}
    # states of old releases lack "source" and "start"
    others = {"source", "start", "device_ops"}
    if not isinstance(state, dict) or set(state) - others != names or state["version"] != _VERSION:
        raise InvalidSpec(f"not a state of a PrepClient (version {_VERSION}): {state!r}", "state_dict")
    try:
        place = ResumePoint(integer("epoch", state["epoch"], 0, _MOST))
        if (state["epoch_start"], state["position"]) != (None, None):  # both None: taken before the first use
            at = (integer(name, state[name], 0, _MOST) for name in ("position", "epoch_start"))
            place = ResumePoint(place.epoch, *at)
        began = None if state.get("start") is None else integer("start", state["start"], -_MOST, _MOST)
    except InvalidSpec as e:
        raise InvalidSpec(f"not a state of a PrepClient, by its numbers: {state!r}", "state_dict") from e
    try:
        source = state.get("source")
        listing = None if source is None else ListingIdentity.from_state(source)
    except (LookupError, TypeError, ValueError) as e:
        raise InvalidSpec(f"not a state of a PrepClient, by its source: {state!r}", "state_dict") from e
    if state["spec"] != digest:
        raise InvalidSpec(
            f"the state was taken from another stream of rows (its spec is {state['spec']}, this one is {digest}): "
            "source, shuffle, seed, ops and views must be the same. Ranks and workers may differ, and unless whole "
            "batches are shuffled also batch_size and num_shards",
            "state_dict",
        )
    return place, began, listing, str(state.get("device_ops", ""))
