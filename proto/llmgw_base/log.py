"""Logs: one line an event, with fields, in the form that the reader of stderr takes best.

Give fields with ``logger.info("endpoint gone", extra={"fields": {"replica": replica}})``. Control characters that come from
outside are escaped, so that nobody can write a line of their own into a log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from llmgw_base.config import LogSection

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def setup(section: LogSection, program: str) -> None:
    """Sends the root logger to stderr (or the journal) in the wanted form, replacing earlier handlers."""
    chosen = section.format
    if chosen == "auto":
        chosen = "journal" if under_journal() else "text" if sys.stderr.isatty() else "json"
    handler = _journal_handler(program) if chosen == "journal" else logging.StreamHandler(sys.stderr)
    if chosen != "journal":
        handler.setFormatter(JsonFormatter(program) if chosen == "json" else TextFormatter())
    logging.basicConfig(level=section.level.upper(), handlers=[handler], force=True)
    # grpc and asyncio report what llmgw already handles and says in its own words.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def under_journal() -> bool:
    """Whether stderr is connected to journald, the way systemd.exec(5) says to find out."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        stat = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(stat.st_dev), str(stat.st_ino))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def escape(text: str) -> str:
    """The text on one line: control characters as ``\\x1b`` and the like; printable text of any language unchanged."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class TextFormatter(logging.Formatter):
    """``14:03:28 info    message  key=value`` for people; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        pairs = "".join(f"  {key}={escape(str(value))}" for key, value in fields_of(record).items())
        line = f"{at} {record.levelname.lower():<7} {escape(record.getMessage())}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, program, logger, message, fields, traceback."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in fields_of(record).items() if key not in entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class PriorityFormatter(logging.Formatter):
    """sd-daemon(3)'s ``<6>message`` for a journal that is reached through stderr only."""

    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITY.get(record.levelno, 6)
        pairs = "".join(f" {key}={escape(str(value))}" for key, value in fields_of(record).items())
        text = f"{escape(record.getMessage())}{pairs}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return "\n".join(f"<{priority}>{line}" for line in text.splitlines())


def _journal_handler(program: str) -> logging.Handler:
    try:
        from systemd import journal
    except ImportError:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PriorityFormatter())
        return handler

    class FieldsHandler(journal.JournalHandler):  # type: ignore[misc]  # the binding has no types
        def emit(self, record: logging.LogRecord) -> None:
            extra = {f"LLMGW_{key.upper()}": str(value) for key, value in fields_of(record).items()}
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
            journal.send(message, PRIORITY=_PRIORITY.get(record.levelno, 6), SYSLOG_IDENTIFIER=program, **extra)

    return FieldsHandler()
