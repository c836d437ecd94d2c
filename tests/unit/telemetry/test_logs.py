"""Lines of the log."""

from __future__ import annotations

import json
import logging
import sys

from prepserver.telemetry.logs import JsonLines, OneLine


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
