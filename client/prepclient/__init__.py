"""prepclient takes the place of a DataLoader: its batches come from a prepserver daemon.

```python
from prepclient import ImageFolder, PrepClient, RandomHorizontalFlip, RandomResizedCrop

train = PrepClient(ImageFolder("/data/train"), [RandomResizedCrop(224), RandomHorizontalFlip()],
                   batch_size=256, shuffle=True, seed=0, device="cuda")
for images, labels in train:
    ...
```
"""

from prepclient.client import PrepClient
from prepclient.device_ops.cut_mix import CutMix
from prepclient.device_ops.mix_up import MixUp
from prepclient.engine import DeviceUnavailable
from prepclient.errors import (
    BadSampleError,
    BatchTimeout,
    ForkedClient,
    InvalidSpec,
    MemoryRefused,
    NoPermission,
    NoServer,
    PrepClientError,
    ProtocolViolation,
    ServerBusy,
    ServerGone,
    SourceChanged,
    SourceUnavailable,
    TooFewDescriptors,
    UnknownField,
    VersionMismatch,
)
from prepclient.joining import Joining
from prepclient.pinning import PinningWarning
from prepclient.sharding import Sharding
from prepclient.translate import from_torchvision
from prepclient.translate_processor import from_processor
from prepserver import __version__
from prepserver.pipeline import kinds
from prepserver.pipeline import ops as _ops
from prepserver.pipeline import sources as _sources
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import *  # noqa: F403 -- all ops
from prepserver.pipeline.sources import *  # noqa: F403 -- all sources

__all__ = [
    "BadSampleError", "BatchTimeout", "CutMix", "DeviceUnavailable", "ForkedClient", "InvalidSpec", "Joining",
    "MemoryRefused", "MixUp", "NoPermission", "NoServer", "PinningWarning", "PrepClient", "PrepClientError",
    "ProtocolViolation", "ServerBusy", "ServerGone", "Sharding", "SourceChanged", "SourceUnavailable", "SpecError",
    "TooFewDescriptors", "UnknownField", "VersionMismatch", "__version__", "from_processor", "from_torchvision",
    "kinds",
]  # fmt: skip
__all__ += _ops.__all__
__all__ += _sources.__all__
