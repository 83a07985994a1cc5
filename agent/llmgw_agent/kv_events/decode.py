"""One tolerant decoder for the batches of vLLM and SGLang, of old versions (arrays) and new ones (maps).

A batch is msgpack: ``[time, [event, ...], data_parallel_rank or nil]``. What is shorter, longer or newer than known is
accepted: missing fields are None, unknown ones are kept, and an event that makes no sense does not spoil its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from .errors import KvEventError
from .events import AllBlocksCleared, Batch, BlockHash, BlockRemoved, BlockStored, Event, Token, UnknownEvent

# The order of fields in the array form. Newer versions only ever appended.
_ORDER: Final[Mapping[str, Sequence[str]]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_MORE_STORED: Final = ("cache_salt", "session_id", "locality", "ownership")


def decode_batch(seq: int, payload: bytes) -> Batch:
    """Raises KvEventError when the payload is no batch at all."""
    try:
        content = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        raise KvEventError(f"batch {seq} is not msgpack: {error}") from None
    if isinstance(content, dict):
        content = [content.get("ts"), content.get("events"), content.get("data_parallel_rank")]
    if not isinstance(content, list) or len(content) < 2 or not isinstance(content[1], list):
        raise KvEventError(f"batch {seq} is not [time, [events], rank]")
    time, events, rank, *extra = [*content, None] if len(content) == 2 else content
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise KvEventError(f"batch {seq} has no time")
    return Batch(
        seq=seq,
        time=float(time),
        events=tuple(decode_event(each) for each in events),
        data_parallel_rank=_integer(rank),
        payload=payload,
        extra=tuple(extra),
    )


def decode_event(value: Any) -> Event:
    """An array ``[type, field, ...]`` or a map with ``type``. Never raises: what is not understood is an UnknownEvent."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        kind, names = value[0], _ORDER.get(value[0], ())
        fields = {names[at] if at < len(names) else f"#{at}": each for at, each in enumerate(value[1:])}
    elif isinstance(value, dict) and isinstance(value.get("type"), str):
        kind, fields = value["type"], {str(name): each for name, each in value.items() if name != "type"}
    else:
        return UnknownEvent(value, "neither an array nor a map with a type")
    try:
        match kind:
            case "BlockStored":
                return _stored(fields)
            case "BlockRemoved":
                return BlockRemoved(
                    _hashes(fields.get("block_hashes")),
                    _medium(fields.get("medium")),
                    _integer(fields.get("group_idx")),
                    _others(fields, "BlockRemoved"),
                )
            case "AllBlocksCleared":
                return AllBlocksCleared(_others(fields, kind))
    except KvEventError as error:
        return UnknownEvent(value, str(error))
    return UnknownEvent(value, f"the kind {kind!r} is not known")


def _stored(fields: Mapping[str, Any]) -> BlockStored:
    parent = fields.get("parent_block_hash")
    extra_keys = fields.get("extra_keys")
    return BlockStored(
        block_hashes=_hashes(fields.get("block_hashes")),
        parent_block_hash=None if parent is None else _hash(parent),
        token_ids=_tokens(fields.get("token_ids")),
        block_size=_integer(fields.get("block_size")) or 0,
        lora_id=_integer(fields.get("lora_id")),
        medium=_medium(fields.get("medium")),
        lora_name=_text(fields.get("lora_name")),
        extra_keys=tuple(extra_keys) if isinstance(extra_keys, list) else None,
        group_idx=_integer(fields.get("group_idx")),
        kv_cache_spec_kind=_text(fields.get("kv_cache_spec_kind")),
        kv_cache_spec_sliding_window=_integer(fields.get("kv_cache_spec_sliding_window")),
        cache_salt=_text(fields.get("cache_salt")),
        session_id=_text(fields.get("session_id")),
        locality=fields.get("locality"),
        ownership=fields.get("ownership"),
        extra=_others(fields, "BlockStored", *_MORE_STORED),
    )


def _others(fields: Mapping[str, Any], kind: str, *more: str) -> Mapping[str, Any]:
    known = {*_ORDER[kind], *more}
    return {name: value for name, value in fields.items() if name not in known}


def _hashes(value: Any) -> tuple[BlockHash, ...]:
    if not isinstance(value, list):
        raise KvEventError("block_hashes is not a list")
    return tuple(_hash(each) for each in value)


def _hash(value: Any) -> BlockHash:
    if isinstance(value, bytes) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise KvEventError("a block hash is neither an integer nor bytes")


def _tokens(value: Any) -> tuple[Token, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise KvEventError("token_ids is not a list")
    return tuple(_token(each) for each in value)


def _token(value: Any) -> Token:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return tuple(value)
    raise KvEventError("a token is neither an integer nor several")


def _medium(value: Any) -> str | None:
    return value.upper() if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
