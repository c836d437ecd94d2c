"""Lines of the log."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from prepserver.telemetry.logs import JsonLines, OneLine
from tests.support.waiting import PATIENCE_S


def test_a_name_forges_no_line_and_drives_no_terminal() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "no %s", ("a\n\x1b[2J\udcffé",), None)
    assert OneLine("%(levelname)s %(message)s").format(record) == "INFO no a\\n\\x1b[2J\\udcffé"


def test_the_text_of_an_error_forges_no_line() -> None:
    try:
        raise ValueError("a\nFORGED \x1b[2J\x85\u2028FORGED")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "no", (), sys.exc_info())
    lines = OneLine("%(levelname)s %(message)s").format(record).splitlines()
    assert lines[0] == "ERROR no"
    assert "  ValueError: a" in lines
    assert "  FORGED \\x1b[2J" in lines
    assert all(line.startswith("  ") for line in lines[1:])


def test_json_lines_hold_what_was_said_and_a_traceback() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "no %s", ("\n\udcff",), sys.exc_info())
    line = JsonLines().format(record)
    found = json.loads(line)
    assert line.isascii()
    assert line.isprintable()
    assert (found["level"], found["logger"], found["message"]) == ("error", "x", "no \n\udcff")
    assert found["time"].endswith("+00:00")
    assert "ValueError: a" in found["traceback"]


_SPEAKS = """
import logging
from prepserver.telemetry.logs import log_to_stderr
log_to_stderr("debug", {form!r})
log = logging.getLogger("x")
log.info("a")
log.warning("b")
log.error("c", exc_info=ValueError("d"))
"""


def _said(form: str, *, is_journal: bool) -> list[str]:
    read, write = os.pipe()
    status = os.fstat(write)
    with open(read) as heard, open(write, "w") as stderr:
        subprocess.run(
            [sys.executable, "-c", _SPEAKS.format(form=form)], stderr=stderr, check=True, timeout=PATIENCE_S,
            env={**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + (not is_journal)}"},
        )  # fmt: skip
        stderr.close()
        return heard.read().splitlines()


def test_the_journal_gets_priorities_and_no_times() -> None:
    """`journalctl -p warning` shows warnings and errors, with all lines of a traceback."""
    assert _said("text", is_journal=True) == ["<6>INFO x: a", "<4>WARNING x: b", "<3>ERROR x: c", "<3>  ValueError: d"]


@pytest.mark.parametrize("is_journal", [True, False])
def test_json_lines_are_whole_for_the_journal_and_elsewhere(is_journal: bool) -> None:
    said = _said("json", is_journal=is_journal)
    assert [line[:3] for line in said] == (["<6>", "<4>", "<3>"] if is_journal else ['{"t'] * 3)
    assert [json.loads(line[3 * is_journal :])["message"] for line in said] == ["a", "b", "c"]


def test_a_file_gets_times_though_a_journal_is_named() -> None:
    assert _said("text", is_journal=False)[0][:2] == "20"
