from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prepserver import plugins
from prepserver.cli import exits, main
from prepserver.pack.expression import source_from
from prepserver.pipeline import kinds
from prepserver.pipeline.sources import Jsonl, Packed, Windows, source_from_wire
from prepserver.source import SourceError, build_index, open_source
from tests.support.photos import jpeg


def run(*words: str) -> int:
    try:
        return main(["pack", *words])
    except SystemExit as e:
        return int(str(e.code))


PHOTOS = "SyntheticImages(3, (40, 60))"


def test_a_finished_dataset_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("SyntheticImages(5, (40, 60))", str(tmp_path / "out"), "--transcoder", "pillow", "--json")
    assert run(*words, "--workers", "2") == exits.OK
    summary = json.loads(capsys.readouterr().out)
    assert (summary["samples"], summary["indexed"], summary["this_run"]["how"]) == (5, 5, {"re-encoded": 5})
    assert run(*words) == exits.OK
    assert json.loads(capsys.readouterr().out)["already"]


def test_a_folder_is_packed_and_the_text_says_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.jpg").write_bytes(jpeg(30, 40))
    assert run(str(tmp_path / "data"), str(tmp_path / "out")) == exits.OK
    out = capsys.readouterr().out
    assert "1 sample in 1 shard" in out
    assert f'Packed("{tmp_path}/out")' in out


def test_any_source_is_packed_as_python_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = "Take(Concat([SyntheticImages(2, 40), SyntheticImages(3, size=(40, 60), num_classes=2)]), n=4)"
    assert run(written, str(tmp_path / "out"), "--transcoder", "pillow", "--json") == exits.OK
    assert json.loads(capsys.readouterr().out)["samples"] == 4
    assert run(f"Packed('{tmp_path}/out')", str(tmp_path / "again")) == exits.USAGE
    assert "is already packed" in capsys.readouterr().err
    assert run(f"Skip(Packed('{tmp_path}/out'), 1)", str(tmp_path / "again")) == exits.USAGE
    assert "is already packed" in capsys.readouterr().err


THINGS = """
import numpy as np

class Things:
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return {
            "caption": f"b\u00e9b\u00e9 {index}", "scores": rng.random((index, 2), np.float32), "weight": index / 4,
            "photo": rng.integers(0, 256, (20 + index, 30, 3), np.uint8), "label": index % 3, "raw": b"\\0" * index,
            "seg": rng.integers(0, 5, (20 + index, 30), np.uint8), "ids": np.arange(4), "second": 10 + index,
        }

prepserver_sources = {"things": Things}
"""
COLUMNS = (
    '{"caption": kinds.Text(), "scores": kinds.Array(), "weight": kinds.Scalar(dtype="float32"), '
    '"photo": kinds.Image(), "label": kinds.Label(), "raw": kinds.Bytes(), "seg": kinds.Mask(), '
    '"ids": kinds.Tokens(count=4), "second": kinds.Label()}'
)


def test_every_kind_of_column_is_packed_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "things_to_pack.py").write_text(THINGS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_loaded", {})
    written = f"Skip(Plugin('things', count=6, columns={COLUMNS}), 1)"
    assert run(written, str(tmp_path / "out"), "--plugin", "things_to_pack", "--json") == exits.OK
    summary = json.loads(capsys.readouterr().out)
    packed, plain = source_from(summary["use"]), source_from(written)
    assert packed is not None
    assert plain is not None
    assert packed.columns == plain.columns
    assert source_from_wire(packed.to_wire()) == packed
    plain = plain.with_code(plugins.codes())
    (a, b) = (open_source(each, build_index(each, tmp_path / "cache").path) for each in (packed, plain))
    assert len(a) == len(b) == 5
    for index in range(5):
        ours, theirs = a.read(index), b.read(index)
        assert list(ours) == list(theirs)
        for name in ("photo", "seg"):
            ours[name] = np.asarray(Image.open(io.BytesIO(ours[name])))
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value)
            assert np.ndim(value) == 0 or ours[name].dtype == value.dtype
    wrong = Packed(tmp_path / "out", columns={"caption": kinds.Bytes()})
    for other, said in (
        (wrong, "other kinds of caption than .*It has .*caption: Text"),
        (Packed(tmp_path / "out"), "image"),
    ):
        with pytest.raises(SourceError, match=said):
            build_index(other, tmp_path / "cache")
    some = Packed(tmp_path / "out", columns={"second": kinds.Label(), "caption": kinds.Text()})
    read = open_source(some, build_index(some, tmp_path / "cache").path).read(4)
    assert read == {"second": 15, "caption": "b\u00e9b\u00e9 5"}
    captions = "Plugin('things', count=2, columns={'caption': kinds.Text(), 'label': kinds.Label()})"
    assert run(captions, str(tmp_path / "captions"), "--json") == exits.OK
    use = json.loads(capsys.readouterr().out)["use"]
    only = source_from(use)
    assert only is not None
    opened = open_source(only, build_index(only, tmp_path / "cache").path)
    assert opened.read(1) == {"caption": "b\u00e9b\u00e9 1", "label": 1}
    assert use.endswith(', columns={"caption": kinds.Text(), "label": kinds.Label()})')
    assert run("Plugin('things', count=2, columns={'label': kinds.Label()})", str(tmp_path / "no")) == exits.USAGE
    assert "has only labels" in capsys.readouterr().err


def test_kinds_take_their_values_by_position_as_in_python() -> None:
    written = 'Jsonl("/a", {"n": kinds.Scalar("int64"), "e": kinds.Array((8,), "float64"), "i": kinds.Image((4, 6))})'
    columns = {"n": kinds.Scalar("int64"), "e": kinds.Array((8,), "float64"), "i": kinds.Image((4, 6))}
    assert source_from(written) == Jsonl("/a", columns)


def test_steps_of_windows_are_written_as_a_range() -> None:
    rows = 'Jsonl("/a", {"x": kinds.Scalar()})'
    columns = {"x": kinds.Scalar()}
    assert source_from(f'Windows({rows}, {{"x": range(-96, 0)}})') == Windows(
        Jsonl("/a", columns), {"x": range(-96, 0)}
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("Take(SyntheticImages(3), range(1, 2, 0))", "OUT"), "arg 3 must not be zero"),
        (("Take(SyntheticImages(3), range(stop=1))", "OUT"), "there is no op or source range"),
        (("Take(SyntheticImages(3), 0)", "OUT"), "n = 0: must lie between"),
        (("Filtr(SyntheticImages(3))", "OUT"), "Filtr is not a source; sources are Arrays, BucketByLength,"),
        (("Take(SyntheticImages(3), open('x'))", "OUT"), "there is no op or source open"),
        (("Take(SyntheticImage(3), 2)", "OUT"), "no op or source SyntheticImage; did you mean SyntheticImages?"),
        (("Take(SyntheticImages(3), x.y())", "OUT"), "x.y() must be a number, a text in quotes, a list"),
        (("Take(SyntheticImages(3), 1 +)", "OUT"), "invalid syntax"),
        (("Take(SyntheticImages(3), m=1)", "OUT"), "unexpected keyword argument 'm'"),
        (("Take(**{})", "OUT"), "keywords must be strings"),
        (("Take(" * 9000 + ")", "OUT"), "Take(Take("),
        (("Concat([" + "1," * 40000 + "])", "OUT"), "has 80010 characters, more than 65536"),
        (
            ("ImageFolder('/d', masks='/m')", "OUT", "--masks", "/m"),
            "--masks: name the masks in ImageFolder(...) instead",
        ),
        (("s3://bucket/train", "OUT"), "is not on this machine"),
        (("SOURCE", "OUT", "--segment", "9"), "--segment: 9 is not between 1 and 8"),
        (("SOURCE", "OUT", "--quality", "good"), "--quality good"),
        (("SOURCE", "OUT", "--shard-size", "12 apples"), "--shard-size"),
        (("SOURCE", "OUT", "--workers", "many"), "workers"),
        (("SOURCE", "OUT", "--max-side", "0"), "--max-side: 0 is not between 1 and "),
        (("--masks", "--", "a-{0..1}.tar", "OUT"), "--masks needs the extension of the masks"),
        (("x.npz", "OUT"), "x.npz holds arrays, which need no decoding"),
        (("--masks", "--", "SOURCE", "OUT"), "--masks needs the folder of the masks"),
    ],
)
def test_arguments_that_cannot_be_are_named(
    words: tuple[str, ...],
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == exits.USAGE
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_a_missing_source_is_a_failure_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "nothing"), str(tmp_path / "out")) == exits.FAILED
    assert "does not exist" in capsys.readouterr().err


def test_a_folder_that_holds_other_things_is_a_wrong_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert run(PHOTOS, str(tmp_path / "out")) == exits.USAGE
    assert "neither empty" in capsys.readouterr().err


def test_without_a_lossless_way_it_says_that_it_encodes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepserver.transform.native.kernels", lambda: None)
    words = (PHOTOS, str(tmp_path / "out"))
    assert run(*words, "--transcoder", "lossless") == exits.FAILED
    assert "--transcoder lossless: install the compiled kernels" in capsys.readouterr().err
    assert run(*words, "--quality", "80") == exits.OK
    captured = capsys.readouterr()
    assert "encodes JPEGs again (quality: 80)" in captured.err
    assert "re-encoded 3" in captured.out


def test_where_stderr_is_no_terminal_there_is_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PHOTOS, str(tmp_path / "out")) == exits.OK
    assert "\x1b" not in capsys.readouterr().err


def test_json_is_packed_and_half_a_character_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"t": "\u00e4", "m": [{"a": None}]}, {"t": "x\ud800", "m": 1}, {"t": "", "m": "\ud800"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    written = f'Jsonl("{tmp_path}/a.jsonl", {{"t": kinds.Text(), "m": kinds.Json()}})'
    assert run(written, str(tmp_path / "out")) == exits.FAILED
    assert "a.jsonl, line 2: character 1 of a text is half of a surrogate pair" in capsys.readouterr().err
    assert run(written, str(tmp_path / "out"), "--on-error", "skip", "--json") == exits.OK
    packed = source_from(json.loads(capsys.readouterr().out)["use"])
    assert packed is not None
    source = open_source(packed, build_index(packed, tmp_path / "cache").path)
    found = [source.read(index) for index in range(2)]
    assert [{"t": each["t"], "m": json.loads(each["m"])} for each in found] == [rows[0], rows[2]]
