"""`Csv`: tables as comma-separated text."""

from collections.abc import Sequence

from prepserver.pipeline.declared import DeclaredColumns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import PathLike
from prepserver.pipeline.table import JoinedNames, Paths, TextTableSpec


class Csv(TextTableSpec):
    """CSV files: each record is a sample, in the order of the files and of their records.

    Files are UTF-8 and quoted as in RFC 4180: a cell that contains a separator, a quote or a line end is enclosed in
    double quotes, and a quote inside it is doubled. Empty lines are skipped.

    Attributes:
        path: The files: a path or a list of paths, which may contain braces and wildcards, such as
            ``/data/part-*.csv``. Files that match a wildcard are sorted. A relative path counts from the current
            directory.
        columns: Columns to read: a map of names to kinds. A `Text` is the cell. A `Scalar` or `Label` is a number, an
            `Array` or `Tokens` a JSON list, a `Json` any JSON. An `Image` or `Mask` is the path of a file below `root`,
            and so are `Bytes`, such as a point cloud for an op of your own.
        names: Names in the header of columns that are called otherwise there: ``{"width": "sepal width"}``. Several of
            the file make one `Array`: ``{"dense": ["I1", "I2"]}`` for a column ``dense`` of the kind ``Array((2,))``.
        root: The folder that paths are relative to; None for the folder of the CSV file.
        header: Names of all cells of a record, for files without a header line; None if the first record of each file
            has the names.
        delimiter: The character that separates cells.
    """

    def __init__(
        self,
        path: Paths,
        columns: DeclaredColumns,
        names: JoinedNames = None,
        root: str | PathLike | None = None,
        header: Sequence[str] | None = None,
        delimiter: str = ",",
    ) -> None:
        super().__init__(path, columns, names, root)
        if not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n\0'):
            raise SpecError("delimiter", delimiter, "must be one character, and no quote or line end")
        if header is not None:
            if not (isinstance(header, list | tuple) and header and all(isinstance(name, str) for name in header)):
                raise SpecError("header", header, "must be a list of the names of all cells, or None")
            for name in (name for column in self.declared for name in self.names_of(column)):
                if name not in header:
                    raise SpecError("header", header, f"has no {name!r}")
        self.delimiter = delimiter
        self.header = None if header is None else tuple(header)
