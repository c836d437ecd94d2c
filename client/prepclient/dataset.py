"""A DataLoader's other attributes, for frameworks and scripts that read ``loader.dataset`` or ``loader.sampler``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from prepclient.errors import SourceUnavailable
from prepclient.inline import names_of
from prepserver.pipeline.sources import ImageFolder, SourceSpec, SyntheticImages
from prepserver.pipeline.urls import is_url

if TYPE_CHECKING:
    from prepclient.client import PrepClient


class Dataset:
    """A client's source as a dataset: its length and classes, but no samples."""

    def __init__(self, client: PrepClient) -> None:
        self._client = client

    def __len__(self) -> int:
        return self._client.samples

    def __getitem__(self, index: object) -> Any:
        """Raises: workers make samples, in the order of the batches."""
        raise TypeError("a PrepClient's dataset gives no single samples: iterate over the PrepClient")

    @property
    def classes(self) -> list[str]:
        """Names of the classes by label: of an `ImageFolder`, a `FileList` with labels in words, or either one packed.

        This process reads them from the folders, the list or the packed dataset's index.

        Raises:
            AttributeError: The source has none, has changed since it was listed, or cannot be read here.
        """
        return list(self._client._class_names())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> label; see `classes`."""
        return {name: label for label, name in enumerate(self.classes)}

    def __repr__(self) -> str:
        return repr(self._client.spec.source)


class Sampler:
    """A client's order, for training loops that call ``loader.sampler.set_epoch(epoch)``."""

    def __init__(self, client: PrepClient) -> None:
        self._client = client

    def __len__(self) -> int:
        """Samples of an epoch for each rank, rounded up, as in DistributedSampler."""
        shape = self._client.spec.shape
        return -(-self._client.samples // (shape.world_size * shape.shard.count))

    def set_epoch(self, epoch: int) -> None:
        """See `PrepClient.set_epoch`."""
        self._client.set_epoch(epoch)

    def __iter__(self) -> Any:
        """Raises: the daemon draws the order."""
        raise TypeError(
            "a PrepClient's samplers give no indices: fields='dict' has those of a batch, as 'index'. To resume in the "
            "middle of an epoch use state_dict() and load_state_dict(), not accelerate's skip_first_batches"
        )


class BatchSampler(Sampler):
    """The same by batches."""

    def __len__(self) -> int:
        """See `PrepClient.__len__`."""
        return len(self._client)

    @property
    def sampler(self) -> Sampler:
        """See `PrepClient.sampler`."""
        return Sampler(self._client)

    @property
    def batch_size(self) -> int:
        """See `PrepClient.batch_size`."""
        return self._client.batch_size

    @property
    def drop_last(self) -> bool:
        """See `PrepClient.drop_last`."""
        return self._client.drop_last


def class_names(source: SourceSpec, num_classes: int, content: str) -> list[str]:
    """See `Dataset.classes`.

    Args:
        source: The source.
        num_classes: Number of classes in its listing.
        content: Digest of the listing's labels and names.

    Raises:
        AttributeError: There are none, or they have changed.
    """
    if isinstance(source, SyntheticImages):
        raise AttributeError(f"{source} has no class names; num_classes is {num_classes}")
    try:
        if isinstance(source, ImageFolder) and not is_url(source.root):  # listing it again would take too long
            with os.scandir(source.root) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
            if len(names) != num_classes:
                raise AttributeError(
                    f"{source.root} has {len(names)} class folders now, but {num_classes} when it was listed"
                )
            return names
        now, names = names_of(source)
    except (OSError, SourceUnavailable) as e:
        raise AttributeError(f"the class names of {source} cannot be read in this process: {e}") from e
    if now != content:
        raise AttributeError(f"{source} has changed since it was listed, and perhaps its class names, too")
    if not names:
        raise AttributeError(f"the labels of {source} are integers without names; num_classes is {num_classes}")
    return names
