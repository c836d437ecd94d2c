from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from prepserver.cli import exits
from prepserver.pack import command
from tests.support.photos import jpeg


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["pack", *words])
    return int(arguments.run(arguments))


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    assert (command.OK, command.FAILED, command.USAGE) == (exits.OK, exits.FAILED, exits.USAGE)


def test_synthetic_photos_need_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--synthetic", "5", str(tmp_path / "out"), "--size", "40x60", "--transcoder", "pillow", "--json")
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
    assert "1 samples in 1 shards" in out
    assert f'Packed("{tmp_path}/out")' in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("OUT",), "needs SOURCE and OUT"),
        (("SOURCE", "OUT", "--synthetic", "3"), "needs SOURCE and OUT"),
        (("OUT", "--synthetic", "0"), "n = 0"),
        (("OUT", "--synthetic", "3", "--size", "big"), "--size big"),
        (("SOURCE", "OUT", "--segment", "9"), "--segment 9"),
        (("SOURCE", "OUT", "--quality", "good"), "--quality good"),
        (("SOURCE", "OUT", "--shard-size", "12 apples"), "--shard-size"),
        (("SOURCE", "OUT", "--workers", "many"), "workers"),
        (("SOURCE", "OUT", "--max-side", "0"), "--max-side 0"),
        (("OUT", "--synthetic", "3", "--masks", "M"), "--masks: synthetic photos have none"),
        (("--masks", "--", "a-{0..1}.tar", "OUT"), "--masks: needs the extension of the masks"),
        (("x.npz", "OUT"), "x.npz holds arrays: their rows need no decoding"),
        (("--masks", "--", "SOURCE", "OUT"), "--masks: needs the folder of the masks"),
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
    assert run("--synthetic", "3", str(tmp_path / "out")) == exits.USAGE
    assert "not empty" in capsys.readouterr().err


def test_without_jpegtran_it_says_that_it_encodes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("--synthetic", "3", str(tmp_path / "out"), "--size", "40x60")
    assert run(*words, "--transcoder", "jpegtran") == exits.FAILED
    assert "jpegtran is not installed" in capsys.readouterr().err
    assert run(*words, "--quality", "80") == exits.OK
    captured = capsys.readouterr()
    assert "encodes JPEGs again (quality: 80)" in captured.err
    assert "re-encoded 3" in captured.out


def test_where_stderr_is_no_terminal_there_is_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--synthetic", "3", str(tmp_path / "out"), "--size", "40x60") == exits.OK
    assert "\x1b" not in capsys.readouterr().err
