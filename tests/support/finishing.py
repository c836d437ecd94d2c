"""Batches finished as a stage finishes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prepclient.finish import Finisher


def finished(finisher: Finisher, parts: Sequence[torch.Tensor], drawn: torch.Tensor | None = None) -> torch.Tensor:
    """A new batch from its stored parts."""
    out = finisher.empty(sum(map(len, parts)))
    finisher.fill(out, parts, drawn)
    return out
