"""prepclient: batches from a prepserver daemon, in the DataLoader's place.

```python
from prepclient import ImageFolder, PrepClient, RandomHorizontalFlip, RandomResizedCrop

train = PrepClient(ImageFolder("/data/train"), [RandomResizedCrop(224), RandomHorizontalFlip()],
                   batch_size=256, shuffle=True, seed=0, device="cuda")
for images, labels in train:
    ...
```
"""

from prepclient.client import PrepClient
from prepclient.device import DeviceUnavailable
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
from prepclient.pinning import PinningWarning
from prepclient.sources import FileList, ImageFolder, Packed, SyntheticImages
from prepserver import __version__
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Decode,
    Grayscale,
    Normalize,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToLayout,
)

__all__ = [
    "BadSampleError",
    "BatchTimeout",
    "CenterCrop",
    "ColorJitter",
    "Decode",
    "DeviceUnavailable",
    "FileList",
    "ForkedClient",
    "Grayscale",
    "ImageFolder",
    "InvalidSpec",
    "MemoryRefused",
    "NoPermission",
    "NoServer",
    "Normalize",
    "Packed",
    "Pad",
    "PinningWarning",
    "PrepClient",
    "PrepClientError",
    "ProtocolViolation",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ServerBusy",
    "ServerGone",
    "SourceChanged",
    "SourceUnavailable",
    "SpecError",
    "SyntheticImages",
    "ToDtype",
    "ToLayout",
    "TooFewDescriptors",
    "UnknownField",
    "VersionMismatch",
    "__version__",
]
