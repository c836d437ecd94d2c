from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from prepclient import PadBoxes, PrepClient, RandomHorizontalFlip, RandomResizedCrop, SanitizeBoxes
from prepserver.pack import PackError
from prepserver.pack.expression import source_from
from prepserver.pack.plan import LISTING_NAME
from prepserver.pack.report import Report
from prepserver.pack.run import Options, Summary, pack
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline import kinds
from prepserver.pipeline.sources import (
    Arrays,
    Coco,
    Csv,
    FileList,
    Filter,
    ImageFolder,
    Jsonl,
    Mix,
    Packed,
    Repeat,
    SourceSpec,
    SyntheticImages,
    Take,
    Tar,
    TextLines,
)
from prepserver.source import SourceError, build_index, open_source
from prepserver.source.readers.packed import PLAN_NAME
from prepserver.transform import native
from tests.support.detection import annotation, coco_tree, voc_tree
from tests.support.photos import jpeg, pixels, saved


class Told(Report):
    """A report that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.seen: list[int] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, total: int, done: int) -> None:
        self.seen.append(done)

    def progress(self, done: int) -> None:
        self.seen.append(done)


def tree(root: Path) -> ImageFolder:
    for index in range(6):
        path = root / ("cats" if index < 3 else "dogs") / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40 + index, 60, seed=index))
    (root / "dogs" / "7.png").write_bytes(saved(pixels(20, 30), "PNG"))
    return ImageFolder(str(root))


def do(
    spec: SourceSpec, out: Path, skip: bool = False, told: Told | None = None, lossless: bool = False, **how: Any
) -> Summary:
    return pack(spec, out, Options(Transcoder(lossless, **how), shard_bytes=1 << 20, skip=skip), told or Told())


def sources(tmp_path: Path) -> dict[str, SourceSpec]:
    folder = tree(tmp_path / "data")
    names = tmp_path / "list.txt"
    names.write_text(f"data/dogs/7.png 4\ndata/cats/1.jpg 0\n{tmp_path}/data/cats/0.jpg 9\n")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for label, path in ((3, "cats/1.jpg"), (0, "dogs/7.png")):
            archive.add(folder.root + "/" + path, path)
            member = tarfile.TarInfo(os.path.splitext(path)[0] + ".cls")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"%d" % label))
    tar = Tar(tmp_path / "a.tar")
    synthetic = SyntheticImages(9, 64, 1, 3)
    mixed = Repeat(Mix([Take(folder, 2), tar], [1, 2]), 2)
    return {"folder": folder, "list": FileList(names), "synthetic": synthetic, "tar": tar, "mixed": mixed}


@pytest.mark.parametrize("kind", ["folder", "list", "synthetic", "tar", "mixed"])
def test_a_packed_dataset_keeps_labels_names_and_classes(kind: str, tmp_path: Path) -> None:
    spec = sources(tmp_path)[kind]
    summary = do(spec, tmp_path / "out")
    index, packed_index = build_index(spec, tmp_path / "cache"), build_index(Packed(summary.folder), tmp_path / "cache")
    plain, packed = open_source(spec, index.path), open_source(Packed(summary.folder), packed_index.path)
    assert len(packed) == len(plain) == packed_index.samples == summary.samples
    assert packed.classes() == plain.classes()
    assert [packed.name(k) for k in range(len(plain))] == [plain.name(k) for k in range(len(plain))]
    assert [packed.label(k) for k in range(len(plain))] == [plain.label(k) for k in range(len(plain))]
    assert packed_index.num_classes <= index.num_classes
    if kind not in ("synthetic", "mixed"):
        assert packed_index.content_digest == index.content_digest
    assert packed_index.digest != index.digest


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    first = do(spec, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    second = do(spec, tmp_path / "out")
    assert second.already
    assert not first.already
    assert (second.samples, second.indexed, second.kept, second.total_bytes) == (
        first.samples, first.indexed, first.kept, first.total_bytes
    )  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("at", [7, -1])  # of another release; damaged
def test_an_unreadable_index_is_made_again_from_the_shards(at: int, tmp_path: Path) -> None:
    spec, told = tree(tmp_path / "data"), Told()
    first = do(spec, tmp_path / "out")
    (index,) = (tmp_path / "out").glob("index-*")
    whole = index.read_bytes()
    bent = bytearray(whole)
    bent[at] ^= 3
    index.write_bytes(bent)
    again = do(spec, tmp_path / "out", told=told)
    assert index.read_bytes() == whole
    assert told.said == ["continuing: 7 of 7 samples are already packed"]
    assert (again.indexed, again.kept, again.image_bytes) == (first.indexed, first.kept, first.image_bytes)


def test_other_options_on_the_same_folder_are_refused_by_name(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    do(spec, tmp_path / "out")
    with pytest.raises(PackError, match="segment_mcus was 4, is 8") as refused:
        do(spec, tmp_path / "out", segment_mcus=8)
    assert refused.value.usage


def test_a_source_that_has_changed_is_refused(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    do(spec, tmp_path / "out")
    (tmp_path / "data" / "cats" / "9.jpg").write_bytes(jpeg(40, 40))
    os.utime(tmp_path / "data" / "cats", (1, 1))
    with pytest.raises(PackError, match="samples was 7, is 8"):
        do(spec, tmp_path / "out")


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(PackError, match="neither empty") as refused:
        do(tree(tmp_path / "data"), out)
    assert refused.value.usage
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_a_source_that_is_not_there_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="does not exist"):
        do(ImageFolder(str(tmp_path / "nothing")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_packed_dataset_is_not_packed_again(tmp_path: Path) -> None:
    do(tree(tmp_path / "data"), tmp_path / "out")
    with pytest.raises(PackError, match="is already packed"):
        do(Packed(str(tmp_path / "out")), tmp_path / "again")


def test_rows_that_need_no_decoding_are_not_packed(tmp_path: Path) -> None:
    number, pixels = {"x": kinds.Scalar()}, {"x": kinds.Array((4, 4, 3), "uint8"), "y": kinds.Label()}
    for columns in (number, pixels):
        spec = Arrays(columns=columns, **dict.fromkeys(columns, "/data/x.npz"))
        with pytest.raises(PackError, match=rf"has only numbers \({', '.join(columns)}\)") as refused:
            do(spec, tmp_path / "out")
        assert refused.value.usage
    assert not (tmp_path / "out").exists()


def test_arrays_of_varying_size_are_packed(tmp_path: Path) -> None:
    clouds = [[[float(row), 0.5] for row in range(count)] for count in (3, 1, 4)]
    file = tmp_path / "clouds.jsonl"
    file.write_text("".join(json.dumps({"points": cloud, "label": 7}) + "\n" for cloud in clouds))
    spec = Jsonl(str(file), columns={"points": kinds.Array(), "label": kinds.Label()})
    use = do(spec, tmp_path / "out").use
    assert use == f'Packed("{tmp_path / "out"}", columns={{"points": kinds.Array(), "label": kinds.Label()}})'
    packed = source_from(use)
    assert packed is not None
    records = [open_source(packed, build_index(packed, tmp_path / "cache").path).read(n) for n in range(3)]
    assert [record["points"].tolist() for record in records] == clouds
    assert {record["points"].dtype.name for record in records} == {"float32"}
    assert [record["label"] for record in records] == [7, 7, 7]


@pytest.mark.parametrize(
    ("options", "option"), [({"max_side": 100}, "--max-side"), ({"pixels": "rgb"}, "--form pixels")]
)
def test_only_photos_are_shrunk_or_decoded(tmp_path: Path, options: dict[str, Any], option: str) -> None:
    spec = Csv("/data/chips.csv", {"image": kinds.Image(channels=13)})
    with pytest.raises(PackError, match=f"{option}: .* has no images of uint8 with 3 channels") as refused:
        do(spec, tmp_path / "out", **options)
    assert refused.value.usage


def test_an_unreadable_file_ends_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    bad = tmp_path / "data" / "dogs" / "4.jpg"
    whole = bad.read_bytes()
    bad.write_bytes(b"")
    with pytest.raises(PackError, match=r"dogs/4\.jpg: the file is empty") as refused:
        do(spec, tmp_path / "out")
    assert not refused.value.usage
    with pytest.raises(PackError, match="not finished"):
        pack_index(tmp_path)
    bad.write_bytes(whole)
    told = Told()
    assert do(spec, tmp_path / "out", told=told).samples == 7
    assert told.seen[0] == 4
    assert "4 of 7 samples are already packed" in told.said[0]


def test_unreadable_files_are_left_out_where_asked_and_named(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    (tmp_path / "data" / "cats" / "1.jpg").write_bytes(b"")
    told = Told()
    summary = do(spec, tmp_path / "out", skip=True, told=told)
    assert (summary.samples, summary.indexed, summary.kept, summary.skipped) == (6, 5, 1, 1)
    assert told.said == ["skipped cats/1.jpg: the file is empty"]
    packed = open_source(Packed(summary.folder), pack_index(tmp_path))
    assert [packed.name(k) for k in range(6)] == [
        "cats/0.jpg", "cats/2.jpg", "dogs/3.jpg", "dogs/4.jpg", "dogs/5.jpg", "dogs/7.png"
    ]  # fmt: skip
    assert [packed.label(k) for k in range(6)] == [0, 0, 1, 1, 1, 1]


class Damages(Told):
    """Changes a byte of the listing, which is open by then, at a text."""

    def __init__(self, out: Path, text: bytes) -> None:
        super().__init__()
        self._folder, self._text = out / LISTING_NAME, text

    def begin(self, total: int, done: int) -> None:
        (path,) = self._folder.glob("*.idx")
        data = path.read_bytes()
        path.write_bytes(data.replace(self._text, bytes(len(self._text)), 1))
        assert path.read_bytes() != data


@pytest.mark.parametrize("kind", ["folder", "lines"])
def test_no_sample_is_left_out_because_its_listing_is_damaged(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    texts = TextLines(str(tmp_path / "a.txt"))
    spec, at = (tree(tmp_path / "data"), b"7.png") if kind == "folder" else (texts, (4).to_bytes(8, "little"))
    with pytest.raises(PackError, match=r"listing .*\.idx is damaged: run the same command"):
        do(spec, tmp_path / "out", skip=True, told=Damages(tmp_path / "out", at))
    assert do(spec, tmp_path / "out", skip=True).skipped == 0


def test_a_file_that_is_cut_while_it_is_packed_is_named(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text,label\none,1\ntwo,2\n")

    class Cuts(Told):
        def end(self) -> None:
            os.truncate(table, 20)

    spec = Csv(str(table), columns={"text": kinds.Text(), "label": kinds.Label()})
    with pytest.raises(PackError, match=r"^/.*t\.csv: t\.csv has 20 bytes .* it has changed"):
        do(spec, tmp_path / "out", told=Cuts())


def test_damaged_files_are_kept_and_named(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    whole = (tmp_path / "data" / "cats" / "1.jpg").read_bytes()
    (tmp_path / "data" / "cats" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "data" / "dogs" / "3.jpg").write_bytes(whole[:40])
    (tmp_path / "data" / "dogs" / "4.jpg").write_bytes(b"<html>not found</html>")
    told = Told()
    assert do(spec, tmp_path / "out", told=told).kept == 4
    assert told.said == [
        "kept cats/1.jpg: damaged", "kept dogs/3.jpg: damaged or unusual JPEG", "kept dogs/4.jpg: no JPEG"
    ]  # fmt: skip


def test_two_packers_do_not_meet_in_one_folder(tmp_path: Path) -> None:
    spec = tree(tmp_path / "data")
    ready, ready_in = os.pipe()
    ended, end = os.pipe()
    pid = os.fork()  # a lock of the same process would let us in
    if pid == 0:
        from prepserver.pack.plan import Workplace

        place = Workplace(tmp_path / "out")
        os.write(ready_in, b"1")
        os.read(ended, 1)
        place.close()
        os._exit(0)
    os.read(ready, 1)
    try:
        with pytest.raises(PackError, match="another process is packing"):
            do(spec, tmp_path / "out")
    finally:
        os.write(end, b"1")
        os.waitpid(pid, 0)
        for descriptor in (ready, ready_in, ended, end):
            os.close(descriptor)
    assert do(spec, tmp_path / "out").samples == 7


def test_nothing_but_shards_index_and_plan_stays(tmp_path: Path) -> None:
    do(tree(tmp_path / "data"), tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [name.split("-")[0] for name in names] == ["index", "pack.json", "shard"]
    assert LISTING_NAME not in names


def pack_index(tmp_path: Path) -> Path:
    try:
        return build_index(Packed(str(tmp_path / "out")), tmp_path / "cache").path
    except Exception as error:
        raise PackError(str(error)) from error


def test_masks_are_not_packed_with_smaller_images(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("a.jpg,0,a.png")
    with pytest.raises(PackError, match="leave out one of the two"):
        do(FileList(tmp_path / "list.csv", masks=True), tmp_path / "packed", max_side=100)
    assert not (tmp_path / "packed").exists()


def test_masks_that_were_not_packed_are_missed_by_name(tmp_path: Path) -> None:
    do(tree(tmp_path / "data"), tmp_path / "out")
    with pytest.raises(SourceError, match="was packed without mask: pack its source again with --masks"):
        build_index(Packed(tmp_path / "out", masks=True), tmp_path / "cache")


@pytest.mark.parametrize("names", [("country", "label"), ("label", "country"), ("country", "label_of")])
def test_each_of_several_labels_is_kept(names: tuple[str, str], tmp_path: Path) -> None:
    """One is in the index: the column `label`, else the first."""
    lines: list[dict[str, Any]] = [
        {"country": n, "label": 10 - n, "label_of": 20 + n, "text": str(n)} for n in range(5)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    columns = {name: kinds.Label() for name in names} | {"text": kinds.Text()}
    source = Jsonl(tmp_path / "a.jsonl", columns)
    do(source, tmp_path / "out")
    packed = open_source(spec := Packed(tmp_path / "out", columns=columns), build_index(spec, tmp_path / "cache").path)
    assert [packed.read(n) for n in range(5)] == [{name: line[name] for name in columns} for line in lines]
    assert [packed.label(n) for n in range(5)] == [line["label" if "label" in names else "country"] for line in lines]
    wanted = Filter(source, [lines[1]["label" if "label" in names else "country"]])
    assert open_source(wanted, build_index(wanted, tmp_path / "cache").path).read(0)["text"] == "1"


def test_a_pack_that_had_another_label_is_not_continued(tmp_path: Path) -> None:
    """0.2 kept the first label in the index; half of the shards would have it, too."""
    (tmp_path / "a.jsonl").write_text('{"country": 1, "label": 2, "text": "a"}')
    columns = {"country": kinds.Label(), "label": kinds.Label(), "text": kinds.Text()}
    do(source := Jsonl(tmp_path / "a.jsonl", columns), tmp_path / "out")
    plan = tmp_path / "out" / PLAN_NAME
    found = json.loads(plan.read_text())
    assert found.pop("label") == "label"
    plan.write_text(json.dumps(found))
    with pytest.raises(PackError, match='label was null, is "label"'):
        do(source, tmp_path / "out")


def test_another_kind_than_was_packed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "text": "a"}')
    do(Jsonl(tmp_path / "a.jsonl", {"x": kinds.Scalar(), "text": kinds.Text()}), tmp_path / "out")
    for columns, said in (
        ({"x": kinds.Scalar("int8")}, "out was packed with other kinds of x than columns= names. It has x: Scalar"),
        ({"y": kinds.Scalar()}, "out was packed without y. It has x: Scalar"),
    ):
        with pytest.raises(SourceError, match=said):
            build_index(Packed(tmp_path / "out", columns=columns), tmp_path / "cache")


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_boxes_and_keypoints_are_those_of_the_source(kind: str, tmp_path: Path) -> None:
    """A sample whose annotations are broken is left out, as one that cannot be read."""
    tree = (coco_tree if kind == "coco" else voc_tree)(tmp_path / "data", 12)
    source: SourceSpec = tree
    if isinstance(tree, Coco):
        notes = Path(tree.annotations)
        content = json.loads(notes.read_text())
        points = [[number, 2 * number, number % 3] * 17 for number in range(len(content["annotations"]))]
        for each, joints in zip(content["annotations"], points, strict=True):
            each["keypoints"] = joints
        content["annotations"].append(annotation(999, tree, 11, (0, 0, float("nan"), 1)))
        notes.write_text(json.dumps(content))
        source = Coco(tree.root, tree.annotations, crowd=True, keypoints=17, sizes=True)
    made = do(source, tmp_path / "out", skip=True, lossless=native.kernels() is not None)
    assert (made.samples, made.skipped) == ((11, 1) if kind == "coco" else (12, 0))
    packed = source_from(made.use)
    assert packed is not None
    assert packed.columns == source.columns
    ops = [RandomResizedCrop(16), RandomHorizontalFlip(0.5), SanitizeBoxes(), PadBoxes(4)]
    arguments: dict[str, Any] = {"batch_size": 1, "fields": "dict", "inline": True}
    with (
        PrepClient(packed, ops, **arguments) as ours,
        PrepClient(Take(source, made.samples), ops, **arguments) as theirs,
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert a.keys() == b.keys()
            same = {name for name in a if torch.equal(a[name], b[name])}
            assert same == {*a} - (set() if native.kernels() else {"image"})
