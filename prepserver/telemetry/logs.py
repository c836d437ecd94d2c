"""The format of log lines, text or JSON, in the daemon and in its children."""

from __future__ import annotations

import json
import logging
import os
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


class JournalLines(logging.Formatter):
    """Lines of another formatter, each after its priority, which systemd's journal takes off (sd-daemon(3))."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        priority = next((mark for level, mark in _PRIORITIES if record.levelno >= level), "<7>")
        return priority + self._inner.format(record).replace("\n", f"\n{priority}")


_PRIORITIES = ((logging.CRITICAL, "<2>"), (logging.ERROR, "<3>"), (logging.WARNING, "<4>"), (logging.INFO, "<6>"))


def is_journal(fd: int) -> bool:
    """Whether a descriptor leads to systemd's journal (systemd.exec(5))."""
    if (stream := os.environ.get("JOURNAL_STREAM")) is None:
        return False
    status = os.fstat(fd)
    return stream == f"{status.st_dev}:{status.st_ino}"


def log_to_stderr(level: str, form: str) -> None:
    """Makes all loggers of this process write to stderr, as ``text`` or ``json``, at `level` (``info``) or above.

    The journal gets no times, because it has its own, but priorities.
    """
    handler = logging.StreamHandler()
    to_journal = is_journal(2)
    text = OneLine(("" if to_journal else "%(asctime)s ") + "%(levelname)s %(name)s: %(message)s")
    formatter = JsonLines() if form == "json" else text
    handler.setFormatter(JournalLines(formatter) if to_journal else formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
