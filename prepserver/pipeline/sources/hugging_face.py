"""`HuggingFace`: a dataset that ``save_to_disk`` wrote."""

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import Columns, images
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class HuggingFace(SourceSpec):
    """A dataset that Hugging Face's ``Dataset.save_to_disk`` wrote, read in place.

    For a ``DatasetDict``, name one split: ``HuggingFace("/data/food101/train")``. Only listing it needs pyarrow on the
    daemon's side (``pip install 'prepserver[arrow]'``).

    Attributes:
        path: The folder with ``state.json``, as the daemon's machine sees it, or its URL. A relative path counts from
            the current directory.
        image: The column of images: the feature Image of ``datasets``, or encoded bytes.
        label: The column of integer labels; a ClassLabel names the classes. None for samples without labels.
        mask: The column of masks, as `image`, for a column ``mask``; None for no such column.
    """

    paths = ("path",)

    def __init__(
        self, path: str | PathLike, image: str = "image", label: str | None = "label", mask: str | None = None
    ) -> None:
        label = label or ""  # None on the wire would be the default
        for name, value in (("image", image), ("label", label or "label"), ("mask", mask or "mask")):
            if not (isinstance(value, str) and value):
                raise SpecError(name, value, "must be the name of a column")
        self.path = absolute("path", path)
        self.image = image
        self.label = label
        self.mask = mask or None

    @property
    def columns(self) -> Columns:
        return images(self.mask is not None, bool(self.label))
