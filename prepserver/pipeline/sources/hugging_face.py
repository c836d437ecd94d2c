"""`HuggingFace`: a dataset that ``save_to_disk`` wrote."""

from prepserver.pipeline.declared import DeclaredColumns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import PathLike, absolute
from prepserver.pipeline.table import NamedColumnsSpec, Names


class HuggingFace(NamedColumnsSpec):
    """A dataset that Hugging Face's ``Dataset.save_to_disk`` wrote, read in place.

    For a ``DatasetDict``, name one split: ``HuggingFace("/data/food101/train")``. Only listing it needs pyarrow on the
    daemon's side (``pip install 'prepserver[arrow]'``). Texts::

        HuggingFace("/data/wikitext/train", columns={"text": kinds.Text()})

    Attributes:
        path: The folder with ``state.json``, as the daemon's machine sees it, or its URL. A relative path counts from
            the current directory.
        image: The column of images: the feature Image of ``datasets``, or encoded bytes.
        label: The column of integer labels; a ClassLabel names the classes. None for samples without labels.
        mask: The column of masks, as `image`, for a column ``mask``; None for no such column.
        columns: All columns to read, a map of names to kinds, instead of image, mask and label. `Bytes` are bytes or
            the file of a feature such as Audio, a `Text` a string, a `Label` or `Scalar` a number, an `Array` or
            `Tokens` a list of numbers.
        names: Columns that are called otherwise in the dataset: ``{"tokens": "input_ids"}``. Without a name, ``image``,
            ``label`` and ``mask`` are called as above.
    """

    paths = ("path",)

    def __init__(
        self,
        path: str | PathLike,
        image: str = "image",
        label: str | None = "label",
        mask: str | None = None,
        columns: DeclaredColumns | None = None,
        names: Names = None,
    ) -> None:
        for name, value in (("image", image), ("label", label or "label"), ("mask", mask or "mask")):
            if not (isinstance(value, str) and value):
                raise SpecError(name, value, "must be the name of a column")
        self.path = absolute("path", path)
        super().__init__(image, label, mask, columns, names)
