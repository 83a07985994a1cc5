"""The one look at a request's JSON body: the few fields that routing and accounting need, nothing else. Pure.

msgspec checks the syntax of the whole body but builds objects only for the fields of :class:`Peek`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from llmgw_router.errors import ApiError

Number = int | float | None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Peek(msgspec.Struct):
    """``None`` stands for absent or null."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Number = None
    user: str | None = None


_decode = msgspec.json.Decoder(Peek).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
# A key written with escapes, such as "mod\u0065l"; only looked for in bodies that have escapes of ASCII characters at all.
_ESCAPED_KEY = re.compile(rb'\\u00[0-7][0-9a-fA-F](?:[^"\\]|\\u00..){0,16}"\s*:')


def bad(code: str, message: str, param: str | None = None) -> ApiError:
    return ApiError(400, code, message, param=param)


def peek(body: bytes) -> Peek:
    """Reads the fields.

    Raises:
        ApiError: 400, with what is wrong and where.
    """
    if not body:
        raise bad("invalid_json", "The request has no body; send a JSON object with a model field.")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise bad("invalid_json", f"The body is not UTF-8 (byte {error.start}); send JSON in UTF-8.") from None
    try:
        fields = _decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad("invalid_json", f"The body is not JSON: {error}.{_bom(body)}") from None
    except RecursionError:
        raise bad("invalid_json", "The body is nested too deeply; send flatter JSON.") from None
    if (
        _twice(body, b'"model"')
        or (fields.stream is not None and _twice(body, b'"stream"'))
        or (fields.max_tokens is not None and _twice(body, b'"max_tokens"'))
        or (b"\\u00" in body and _ESCAPED_KEY.search(body) is not None)
    ):
        _refuse_duplicates(body)
    return fields


def _twice(body: bytes, key: bytes) -> bool:
    """Whether the key seems to stand twice; nested objects may hold it too, so this is only a reason to look closely."""
    return body.find(key) != body.rfind(key)


def _bom(body: bytes) -> str:
    return " It begins with a byte order mark; leave that out." if body.startswith(b"\xef\xbb\xbf") else ""


def _wrong_type(error: msgspec.ValidationError) -> ApiError:
    text = str(error)
    cause, separator, path = text.partition(" - at `$.")
    if not separator:
        return bad("invalid_type", f"The body is not a JSON object: {cause}.")
    field = path.removesuffix("`")
    return bad("invalid_type", f"Wrong type for {field}: {cause[:1].lower()}{cause[1:]}.", field)


def _refuse_duplicates(body: bytes) -> None:
    """A key that stands twice at the top would let the router and an engine read two different requests."""
    last: list[list[tuple[str, Any]]] = [[]]

    def pairs(items: list[tuple[str, Any]]) -> None:
        last[0] = items

    try:
        json.loads(body, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        raise bad("invalid_json", "The body is not JSON that every engine reads in the same way.") from None
    keys = [key for key, _ in last[0]]
    if len(keys) != len(set(keys)):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise bad("duplicate_key", f"The key {twice!r} stands twice in the body; send it once.", twice)


def ask_for_usage(body: bytes, fields: Peek) -> bytes:
    """The body of a stream, asking the engine for the chunk that tells usage."""
    if fields.stream_options is None and b'"stream_options"' not in body:
        start = body.index(b"{") + 1
        return body[:start] + b'"stream_options":{"include_usage":true},' + body[start:]
    parts = _decode_raw(body)
    options = msgspec.json.decode(parts.get("stream_options", b"null")) or {}
    parts["stream_options"] = msgspec.Raw(_encode({**options, "include_usage": True}))
    return _encode(parts)


def with_model(body: bytes, name: str) -> bytes:
    """The body with another model name, for an engine that knows the model under a name of its own."""
    parts = _decode_raw(body)
    parts["model"] = msgspec.Raw(_encode(name))
    return _encode(parts)
