"""`Jsonl`: a JSON object in each line."""

from prepserver.pipeline.table import TextTableSpec


class Jsonl(TextTableSpec):
    """Lines of JSON: each object is a sample, in the order of the files and of their lines.

    Files are UTF-8. Empty lines are skipped.

    Attributes:
        path: The files, as for `Csv`: ``/data/train-{0..7}.jsonl``.
        columns: Columns to read: a map of names to kinds. A `Text` is a string, a `Scalar` or `Label` a number, true or
            false, an `Array` or `Tokens` a list, a `Json` any value. An `Image`, `Mask` or `Bytes` is the path of a
            file below `root`.
        names: Keys of columns that are called otherwise in the files; dots lead into objects: ``{"answer":
            "answer.text"}``. Several numbers make one `Array`, as for `Csv`.
        root: The folder that paths are relative to; None for the folder of the file.
    """
