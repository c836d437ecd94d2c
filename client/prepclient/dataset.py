"""What a DataLoader has beside its batches: for frameworks and scripts that look at ``loader.dataset``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from prepserver.pipeline.sources import ImageFolder

if TYPE_CHECKING:
    from prepclient.client import PrepClient


class Dataset:
    """The source of a client, seen as a dataset: its length and classes, but no samples.

    Args:
        client: Whose.
    """

    def __init__(self, client: PrepClient) -> None:
        self._client = client

    def __len__(self) -> int:
        return self._client.samples

    def __getitem__(self, index: object) -> Any:
        """Raises: workers make samples, in the order of the batches."""
        raise TypeError("a PrepClient's dataset gives no single samples: iterate over the PrepClient")

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label, of an `ImageFolder`, as this process sees its folders.

        Raises:
            AttributeError: Another source, or a folder that has changed since the daemon listed it.
        """
        source, count = self._client.spec.source, self._client.num_classes
        if not isinstance(source, ImageFolder):
            raise AttributeError(f"a PrepClient knows the names of the classes of an ImageFolder only, not of {source}")
        try:
            with os.scandir(source.root) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as e:
            raise AttributeError(f"the classes of {source} cannot be read in this process: {e}") from e
        if len(names) != count:
            raise AttributeError(
                f"{source.root} has {len(names)} class folders now, and had {count} when it was listed"
            )
        return names

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Labels by the names of the classes; see `classes`."""
        return {name: label for label, name in enumerate(self.classes)}

    def __repr__(self) -> str:
        return repr(self._client.spec.source)


class Sampler:
    """The order of a client, for training loops that call ``loader.sampler.set_epoch(epoch)``.

    Args:
        client: Whose.
    """

    def __init__(self, client: PrepClient) -> None:
        self._client = client

    def set_epoch(self, epoch: int) -> None:
        """See `PrepClient.set_epoch`."""
        self._client.set_epoch(epoch)

    def __iter__(self) -> Any:
        """Raises: the daemon draws the order."""
        raise TypeError(
            "a PrepClient's samplers give no indices: fields='dict' has those of a batch, as 'index'. To go on in the "
            "middle of an epoch use state_dict() and load_state_dict(), not accelerate's skip_first_batches"
        )
