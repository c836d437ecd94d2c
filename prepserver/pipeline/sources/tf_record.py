"""`TFRecord`: files of tf.train.Example."""

from prepserver.pipeline.declared import DeclaredColumns
from prepserver.pipeline.kinds import Array, Bytes, Image, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.record import IMAGES
from prepserver.pipeline.table import Names, Paths, TableSpec


class TFRecord(TableSpec):
    """TensorFlow's record files of tf.train.Example: each record is a sample.

    Samples keep the order of the files and of the records in them. Any record is read at any time, and its checksum is
    verified. Files compressed by gzip are read in place; in a shuffled order that takes some milliseconds per sample,
    which ``cache="encoded"`` pays only once. The daemon's side needs google-crc32c, and indexed-gzip for compressed
    files (``pip install 'prepserver[tfrecord]'``).

    Attributes:
        path: The files on the daemon's machine: a path or a list of paths, with braces and wildcards for several:
            ``/data/train-{00000..01023}-of-01024``, ``/data/*.tfrecord``. A relative path counts from the current
            directory.
        columns: Columns to read: a map of names to kinds; ``image`` and ``label`` by default. An `Image`, `Mask`,
            `Text` or `Bytes` is a feature with one value of bytes, a `Label` or `Scalar` one number, `Tokens` integers,
            and an `Array` as many numbers as its shape says, or the bytes of these (as tf.io.decode_raw reads them);
            without a shape, any number of them, for `PadArray`.
        names: Features of columns that are called otherwise there: ``{"image": "image/encoded"}``.
    """

    kinds = (Image, Mask, Label, Scalar, Array, Tokens, Text, Bytes)

    joins = False

    def __init__(self, path: Paths, columns: DeclaredColumns = IMAGES, names: Names = None) -> None:
        super().__init__(path, columns, names)
