"""`TFRecord`: files of tf.train.Example."""

from prepserver.pipeline.declared import Columns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Bytes, Image, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.record import IMAGES
from prepserver.pipeline.table import Names, Paths, TableSpec


class TFRecord(TableSpec):
    """TensorFlow's record files of tf.train.Example, of which some features are taken.

    Samples keep the order of the files and of the records in them. Any record is read at any time, and its checksum is
    compared. Files that gzip has compressed are read where they lie, which takes some milliseconds for a sample in a
    shuffled order; ``cache="encoded"`` pays that once. The daemon's side needs google-crc32c and, for those,
    indexed-gzip (``pip install 'prepserver[tfrecord]'``).

    Attributes:
        path: The files on the daemon's machine, one or a list, with braces and wildcards for several:
            ``/data/train-{00000..01023}-of-01024``, ``/data/*.tfrecord``. A relative path counts from the current
            directory.
        columns: Columns that are taken, by name: a map to kinds; ``image`` and ``label`` by default. An `Image`,
            `Mask`, `Text` or `Bytes` is a feature with one value of bytes, a `Label` or `Scalar` one number, `Tokens`
            integers, and an `Array` as many numbers as its shape says, or the bytes of these (as tf.io.decode_raw
            reads them). Features whose length differs from sample to sample are refused.
        names: The feature of a column whose own name differs: ``{"image": "image/encoded"}``.
    """

    kinds = (Image, Mask, Label, Scalar, Array, Tokens, Text, Bytes)

    def __init__(self, path: Paths, columns: Columns = IMAGES, names: Names = None) -> None:
        super().__init__(path, columns, names)
        for name, kind in self.declared.items():
            if isinstance(kind, Array) and kind.shape is None:
                raise SpecError(f"columns.{name}", kind, "must have a shape: ragged features are not read")
