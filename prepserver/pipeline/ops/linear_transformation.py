"""`LinearTransformation`: an image's values times a matrix."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import MAX_FILE_BYTES, FileOp
from prepserver.pipeline.source import PathLike, absolute

_MAX_NUMBERS = 1024


class LinearTransformation(FileOp):
    """Compute (values - mean) @ matrix over all values of an image, for example whitening (ZCA).

    The values are in torchvision's order: the first channel row by row, then the next one. An image of D = channels *
    height * width values needs a matrix of (D, D), so the op follows a crop and `ToDtype`. The content of the files is
    part of the stream's identity: a job never continues with another matrix. Each worker keeps the matrix in memory and
    reads all of it for each image, which takes some milliseconds for images of 32 x 32.

    Attributes:
        transformation_matrix: Path of an .npy file on the daemon's machine, (D, D), float32 or float64, of at most 256
            MiB: D is at most 8191 in float32. The op computes in this type and rounds to the image's. The file must lie
            where sources may lie. A relative path counts from the current directory.
        mean_vector: Path of such a file, (D,), or numbers: one for all values, or one for each of up to 1024.
        code: Digest of the files' content; empty for their content when the job attaches.
    """

    paths = ("transformation_matrix", "mean_vector")

    def __init__(
        self, transformation_matrix: str | PathLike, mean_vector: str | PathLike | checks.FloatOrFloats, code: str = ""
    ) -> None:
        self.transformation_matrix = _file("transformation_matrix", transformation_matrix)
        self.mean_vector = _numbers("mean_vector", mean_vector)
        self.code = checks.code(code)

    def image_after(self, image: Image) -> Image:
        name = type(self).__name__
        if image.dtype in checks.WHOLE_TOPS:
            raise SpecError("op", name, "needs floats: put ToDtype('float32', scale=True) before it")
        if image.size is None:
            raise SpecError(
                "op", name, "needs images of one size: put CenterCrop(size) or Resize((height, width)) before it"
            )
        height, width = image.size
        count = image.channels * height * width
        if (nbytes := 4 * count * count) > MAX_FILE_BYTES:
            reason = (
                f"images of {height} x {width} pixels have {count} values, whose matrix is {nbytes >> 20} MiB of "
                f"float32, more than {MAX_FILE_BYTES >> 20}: resize them before"
            )
            raise SpecError("op", name, reason)
        if isinstance(self.mean_vector, tuple) and len(self.mean_vector) not in (1, count):
            raise SpecError(
                "mean_vector", self.mean_vector, f"must be 1 number or {count}, one for each value of an image"
            )
        return replace(image, top=None)


def _file(field: str, value: object) -> str:
    path = absolute(field, value)
    if not path.lower().endswith(".npy"):
        raise SpecError(field, value, "must be an .npy file, as numpy.save writes it")
    return path


def _numbers(field: str, value: object) -> str | tuple[float, ...]:
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return _file(field, value)
    given = checks.items(field, value, range(1, _MAX_NUMBERS + 1)) if isinstance(value, list | tuple) else (value,)
    return tuple(checks.number(field, each) for each in given)
