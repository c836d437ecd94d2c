"""`Csv`: tables as text, separated by commas."""

from collections.abc import Sequence

from prepserver.pipeline.declared import Columns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import PathLike
from prepserver.pipeline.table import Names, Paths, TextTableSpec


class Csv(TextTableSpec):
    """Records of CSV files, one sample each, in the order of the files and of their lines.

    Files are UTF-8. Quoting is that of RFC 4180: a cell with a separator, a quote or a line end is enclosed in double
    quotes, and a quote inside is doubled. Empty lines are skipped.

    Attributes:
        path: The files: a path or a list of them, each with braces and wildcards if need be, ``/data/part-*.csv``. What
            wildcards match is sorted. A relative path counts from the current directory.
        columns: Columns that are taken, by name: a map to kinds. A `Text` is the cell. A `Scalar` or `Label` is a
            number, an `Array` or `Tokens` a JSON list. An `Image` or `Mask` is the path of a file below `root`.
        names: The header's name of a column whose own name differs: ``{"width": "sepal width"}``.
        root: The folder that paths of images are relative to; None for the folder of the CSV file.
        header: Names of all cells of a record, for files without a header line; None if the first record of each file
            has the names.
        delimiter: What separates cells: one character.
    """

    def __init__(
        self,
        path: Paths,
        columns: Columns,
        names: Names = None,
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
            for name in (self.names.get(column, column) for column in self.declared):
                if name not in header:
                    raise SpecError("header", header, f"has no {name!r}")
        self.delimiter = delimiter
        self.header = None if header is None else tuple(header)
