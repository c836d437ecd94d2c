"""The format of log lines, text or JSON, in the daemon and in its children."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


def printable(name: str) -> str:
    """A name, which may hold any bytes, as one line of text; odd characters are escaped."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 worker", "2 workers"."""
    return f"{number} {noun}{'s' * (number != 1)}"


class OneLine(logging.Formatter):
    """Escapes control characters, because names come from clients: none may forge a line or control a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """See `logging.Formatter`."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """See `logging.Formatter`. Each line is indented, so that no error's text looks like a line of the log."""
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """One JSON object on each line: ``time`` (UTC), ``level``, ``logger``, ``pid``, ``message``, and ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "pid": record.process,
            "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


def log_to_stderr(level: str, form: str) -> None:
    """Makes all loggers of this process write to stderr, as ``text`` or ``json``, at `level` (``info``) or above."""
    handler = logging.StreamHandler()
    text = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
