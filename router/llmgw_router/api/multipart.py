"""Finds the ``model`` and ``stream`` fields of a multipart/form-data body without touching the rest. Pure."""

from __future__ import annotations

import re

from llmgw_router.api.peek import Peek, bad

_BOUNDARY = re.compile(rb'^multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_FIELD = re.compile(rb'content-disposition:\s*form-data\s*;[^\r\n]*?\bname=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE)
_MAX_VALUE = 1024
_MAX_PARTS = 256


def peek(body: bytes, content_type: bytes) -> Peek:
    """Reads the form fields that routing needs.

    Raises:
        ApiError: 400, with what is wrong.
    """
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise bad("invalid_content_type", "This path takes multipart/form-data with a boundary; send the file as a form.")
    found = _fields(body, b"--" + (match[1] or match[2]))
    if "model" not in found:
        raise bad("missing_model", "The form has no field model; add one with the name of a served model.", "model")
    return Peek(model=found["model"], stream=found.get("stream", "").lower() in ("true", "1"), user=found.get("user"))


def _fields(body: bytes, delimiter: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if at == 1:
        raise bad("invalid_multipart", "The form does not hold the boundary that Content-Type names.")
    for _ in range(_MAX_PARTS):
        at += len(delimiter)
        if body.startswith(b"--", at):
            return found
        head_end = body.find(b"\r\n\r\n", at, at + 16_384)
        end = body.find(b"\r\n" + delimiter, head_end + 2) if head_end >= 0 else -1
        if end < 0:
            raise bad("invalid_multipart", "The form ends in the middle of a part; send it complete.")
        _take(found, body[at:head_end], body[head_end + 4 : min(end, head_end + 4 + _MAX_VALUE + 1)])
        at = end + 2
    raise bad("invalid_multipart", f"The form has more than {_MAX_PARTS} parts; send fewer.")


def _take(found: dict[str, str], head: bytes, value: bytes) -> None:
    field = _FIELD.search(head)
    name = (field[1] or field[2] or b"") if field is not None else b""
    if name not in (b"model", b"stream", b"user"):
        return
    key = name.decode()
    if key in found:
        raise bad("duplicate_key", f"The form field {key} stands twice; send it once.", key)
    try:
        found[key] = value.decode() if len(value) <= _MAX_VALUE else ""
    except UnicodeDecodeError:
        raise bad("invalid_multipart", f"The form field {key} is not UTF-8.", key) from None
