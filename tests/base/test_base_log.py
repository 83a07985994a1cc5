from __future__ import annotations

import json
import logging

from llmgw_base.log import JsonFormatter, PriorityFormatter, TextFormatter


def record(message: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("llmgw_x", level, __file__, 1, message, None, None)
    made.fields = fields
    return made


def test_json_keeps_fields_and_never_lets_them_replace_its_own() -> None:
    entry = json.loads(JsonFormatter("llmgw-agent").format(record("gone", replica="r-1", program="spoofed", logger="x")))
    assert entry["message"] == "gone"
    assert entry["replica"] == "r-1"
    assert (entry["level"], entry["logger"]) == ("info", "llmgw_x")
    assert entry["program"] == "llmgw-agent"


def test_control_characters_cannot_forge_a_line() -> None:
    hostile = "x\n14:00:00 info forged\x1b[31m"
    for formatter in (TextFormatter(), PriorityFormatter(), JsonFormatter("p")):
        for line in (formatter.format(record(hostile)), formatter.format(record("m", who=hostile))):
            assert "\n" not in line
            assert "\x1b" not in line


def test_text_of_any_language_stays_readable() -> None:
    assert "modèle 模型" in TextFormatter().format(record("modèle 模型"))


def test_priorities_are_syslogs() -> None:
    assert PriorityFormatter().format(record("bad", logging.ERROR)).startswith("<3>bad")
    assert PriorityFormatter().format(record("fine")).startswith("<6>fine")
