"""How each kind that lies on an image's plane is read, and how it follows a move. A file here is a kind."""

from __future__ import annotations

import sys

from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.members import members
from prepserver.transform.follower import Follower

FOLLOWERS: dict[type[Kind], type[Follower]] = {
    follower.kind: follower
    for follower in members(sys.modules[__name__], Follower).values()  # type: ignore[type-abstract]
}
"""Follower classes by their kind."""
