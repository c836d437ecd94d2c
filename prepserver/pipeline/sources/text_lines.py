"""`TextLines`: a sample in each line."""

from prepserver.pipeline.kinds import Text
from prepserver.pipeline.record import Columns
from prepserver.pipeline.source import SourceSpec, absolute_all
from prepserver.pipeline.table import Paths


class TextLines(SourceSpec):
    """Lines of text files: each line is a sample, in the order of the files and of their lines; the column is ``text``.

    Files are UTF-8. Lines end in LF or CR LF, which the text does not include. Empty lines are skipped; lines of blanks
    are kept as they are. A line that is not UTF-8 is a bad sample.

    Attributes:
        path: The files, as for `Csv`: ``/data/corpus/*.txt``.
    """

    paths = ("path",)

    def __init__(self, path: Paths) -> None:
        self.path = absolute_all("path", path)

    @property
    def columns(self) -> Columns:
        """One column of text."""
        return {"text": Text()}
