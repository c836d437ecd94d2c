"""`Parquet`: tables in columns."""

from collections.abc import Mapping

from prepserver.pipeline.declared import DeclaredColumns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Bytes, Image, Json, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.table import JoinedNames, Paths, TableSpec


class Parquet(TableSpec):
    """Rows of Parquet files: each row is a sample, in the order of the files and of their rows.

    The daemon's side needs pyarrow (``pip install 'prepserver[arrow]'``). Files are decoded by row groups, of which
    each worker keeps some: shuffled reading is fast only if groups are small or few. See docs/sources.md.

    Attributes:
        path: The files, as for `Csv`: ``/data/train-*.parquet``.
        image: The column of encoded images, for a column ``image``; dots lead into structs. Without `image`, `label`
            and `columns`, the columns of Hugging Face's datasets are read: ``image.bytes`` and ``label``.
        label: The column of class numbers, for a column ``label``.
        columns: Further columns: a map of names to kinds. An `Image` or `Mask` is an encoded file as bytes, an `Array`
            or `Tokens` a list, a `Json` a struct or list of any form. Numeric columns that have one size in all rows
            are read fastest.
        names: Names of columns that are called otherwise in the files; dots lead into structs. Several columns of
            numbers make one `Array`, as for `Csv`.
    """

    kinds = (Text, Json, Scalar, Label, Array, Tokens, Image, Mask, Bytes)

    def __init__(
        self,
        path: Paths,
        image: str | None = None,
        label: str | None = None,
        columns: DeclaredColumns | None = None,
        names: JoinedNames = None,
    ) -> None:
        if columns is None:
            if image is None and label is None:
                image, label = "image.bytes", "label"
            columns = {}
        for name, value in (("image", image), ("label", label)):
            if isinstance(value, Mapping):
                raise SpecError(name, value, "must be a column's name: pass a map of names to kinds as columns=")
            if value is not None and isinstance(columns, Mapping) and name in columns:
                raise SpecError(name, value, "is a column twice: it is in columns, too")
        if image is not None or label is not None:
            if not isinstance(columns, Mapping):
                raise SpecError("columns", columns, "must be a map of names to kinds")
            usual: dict[str, tuple[str | None, Kind]] = {"image": (image, Image()), "label": (label, Label())}
            given = {name: (value, kind) for name, (value, kind) in usual.items() if value is not None}
            columns = {**{name: kind for name, (_, kind) in given.items()}, **columns}
            if names is None or isinstance(names, Mapping):  # else it is refused below
                names = {**(names or {}), **{name: value for name, (value, _) in given.items() if value is not None}}
        super().__init__(path, columns, names)
