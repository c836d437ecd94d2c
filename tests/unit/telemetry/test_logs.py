"""Lines of the log."""

from __future__ import annotations

import json
import logging
import sys

from prepserver.telemetry.logs import JsonLines, OneLine


def test_a_name_forges_no_line_and_drives_no_terminal() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "no %s", ("a\n\x1b[2J\udcffé",), None)
    assert OneLine("%(levelname)s %(message)s").format(record) == "INFO no a\\n\\x1b[2J\\udcffé"


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
