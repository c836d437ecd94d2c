"""Keywords of `PrepClient` that have moved into records.

They work for one release. Then delete this module, its test, and the lines of `PrepClient.__init__` that call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from prepclient.joining import Joining
from prepclient.sharding import Sharding

R = TypeVar("R", Sharding, Joining)

_SHARDING = {name: name for name in ("rank", "world_size", "num_shards", "shard_index")}
_JOINING = {"start": "start", "join_wait_s": "wait_s", "lag": "lag"}


def moved(
    given: dict[str, Any], sharding: Sharding | None, joining: Joining | None
) -> tuple[Sharding | None, Joining | None, str]:
    """Takes the old keywords out of `given`.

    Args:
        given: Keywords that `PrepClient` does not have.
        sharding: The argument of that name.
        joining: The argument of that name.

    Returns:
        The records with the old keywords in them, and a text that shows the new form; empty without old keywords.

    Raises:
        InvalidSpec: A value is invalid.
    """
    sharding, one = _into(sharding, Sharding, _SHARDING, given)
    joining, other = _into(joining, Joining, _JOINING, given)
    return sharding, joining, "; ".join(filter(None, (one, other)))


def _into(record: R | None, kind: type[R], names: Mapping[str, str], given: dict[str, Any]) -> tuple[R | None, str]:
    old = [name for name in names if name in given]
    if not old:
        return record, ""
    values = {names[name]: given.pop(name) for name in old}
    written = ", ".join(f"{name}={value!r}" for name, value in values.items())
    text = f"{', '.join(old)} will go with the next release: write {kind.__name__.lower()}={kind.__name__}({written})"
    return replace(record or kind(), **values), text
