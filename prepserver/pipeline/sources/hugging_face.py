"""`HuggingFace`: a dataset directory as ``datasets`` writes it."""

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import Record, images
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class HuggingFace(SourceSpec):
    """A dataset that Hugging Face's ``Dataset.save_to_disk`` has written, read where it is.

    Of a ``DatasetDict``, name one split: ``HuggingFace("/data/food101/train")``. Only listing it needs pyarrow on the
    daemon's side (``pip install 'prepserver[arrow]'``).

    Attributes:
        path: The folder with ``state.json``, as the daemon's machine sees it; a relative path counts from the current
            directory. It may be a URL.
        image: The column with images, of ``datasets``' feature Image, or of encoded bytes.
        label: The column with integer labels; a ClassLabel names the classes. None for samples without labels.
        mask: A column with masks, as `image`; None for samples without. It becomes the column ``mask``.
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
    def columns(self) -> Record:
        return images(self.mask is not None, bool(self.label))
