"""How many clients a limit on open files allows."""

from __future__ import annotations

import resource

import pytest

from prepserver.daemon.descriptors import MOST_CLIENTS, DescriptorsShort, clients_allowed


def test_the_limit_decides_up_to_a_most() -> None:
    assert clients_allowed(256, 2) == (256 - 64 - 12) // 8
    assert clients_allowed(1 << 20, 16) == clients_allowed(resource.RLIM_INFINITY, 16) == MOST_CLIENTS


def test_a_limit_too_low_for_any_client_is_refused_with_a_higher() -> None:
    with pytest.raises(DescriptorsShort, match="limit of 100 open files is too low for 8 workers") as caught:
        clients_allowed(100, 8)
    enough = int(str(caught.value).split("raise it to ")[1].split()[0])
    assert clients_allowed(enough, 8) == 4
    with pytest.raises(DescriptorsShort):
        clients_allowed(enough - 1, 8)
