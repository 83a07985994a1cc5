"""KV-cache events as engines mean them, whatever form they were sent in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: An engine's own hash of a block: an integer (vLLM unsigned, SGLang signed 64 bits) or raw bytes. Never computed here.
BlockHash = int | bytes
#: A token, or several that the engine keeps as one (pairs under EAGLE).
Token = int | tuple[int, ...]

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class BlockStored:
    """Blocks came into a cache. Stores are idempotent: engines repeat them, with no parent when a prefix is reported in full.

    ``token_ids`` may be empty and ``block_size`` 0 (offloaded blocks). ``medium`` is in upper case: GPU, CPU, CPU_PINNED, DISK,
    STORAGE, EXTERNAL or another; None means the GPU. ``extra_keys``: per block None or what else went into its hash.
    ``group_idx``: hybrid models report the same tokens once for each group. ``extra`` has fields unknown here.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None = None
    token_ids: tuple[Token, ...] = ()
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    locality: Any = None
    ownership: Any = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class BlockRemoved:
    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class AllBlocksCleared:
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class UnknownEvent:
    """An event of a kind that is not known, or one whose fields make no sense; ``value`` is as it was sent."""

    value: Any
    reason: str


Event = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


@dataclass(frozen=True)
class Batch:
    """What an engine published at once. ``time`` in Unix seconds by the engine's clock; ``payload`` as it was sent."""

    seq: int
    time: float
    events: tuple[Event, ...]
    data_parallel_rank: int | None
    payload: bytes
    extra: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Restarted:
    """The engine is another process now: everything known of its cache is void. Its events follow from its start."""


@dataclass(frozen=True)
class Lost:
    """Batches ``first`` to ``last`` cannot be had any more: blocks may be reported that are gone, and the other way round."""

    first: int
    last: int


@dataclass(frozen=True)
class Undecodable:
    """A batch that is no batch. It counts as received."""

    seq: int
    payload: bytes
    reason: str


Delivery = Batch | Restarted | Lost | Undecodable
