"""Finds the ``model`` and ``stream`` fields of a multipart/form-data body without touching the rest. Pure."""

from __future__ import annotations

import re

from llmgw_router.api.peek import Peek, bad

_BOUNDARY = re.compile(rb'^multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_FIELD = re.compile(rb'content-disposition:\s*form-data\s*;[^\r\n]*?\bname=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE)
_NAMES = frozenset({b"model", b"stream", b"user"})
_MAX_VALUE = 1024
_MAX_PARTS = 256


def peek(body: bytes, content_type: bytes) -> Peek:
    """Reads the form fields that routing needs.

    Raises:
        ApiError: 400, with what is wrong.
    """
    found = _fields(body, _delimiter(content_type))
    if "model" not in found:
        raise bad("missing_model", "The form has no field model; add one with the name of a served model.", "model")
    texts = {name: _text(body, name, span) for name, span in found.items()}
    return Peek(model=texts["model"], stream=texts.get("stream", "").lower() in ("true", "1"), user=texts.get("user"))


def with_model(body: bytes, content_type: bytes, name: str) -> bytes:
    """The form, which :func:`peek` has read, with another model name."""
    start, end = _fields(body, _delimiter(content_type))["model"]
    return body[:start] + name.encode() + body[end:]


def _delimiter(content_type: bytes) -> bytes:
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise bad("invalid_content_type", "This path takes multipart/form-data with a boundary; send the file as a form.")
    return b"--" + (match[1] or match[2])


def _fields(body: bytes, delimiter: bytes) -> dict[str, tuple[int, int]]:
    """Where the values of the fields that matter stand."""
    found: dict[str, tuple[int, int]] = {}
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
        field = _FIELD.search(body, at, head_end)
        name = (field[1] or field[2] or b"") if field is not None else b""
        if name in _NAMES:
            key = name.decode()
            if key in found:
                raise bad("duplicate_key", f"The form field {key} stands twice; send it once.", key)
            found[key] = (head_end + 4, max(end, head_end + 4))
        at = end + 2
    raise bad("invalid_multipart", f"The form has more than {_MAX_PARTS} parts; send fewer.")


def _text(body: bytes, name: str, span: tuple[int, int]) -> str:
    start, end = span
    if end - start > _MAX_VALUE:
        raise bad("invalid_multipart", f"The form field {name} is longer than {_MAX_VALUE} bytes.", name)
    try:
        return body[start:end].decode()
    except UnicodeDecodeError:
        raise bad("invalid_multipart", f"The form field {name} is not UTF-8.", name) from None
