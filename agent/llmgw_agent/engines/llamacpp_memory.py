"""How much host memory llama.cpp needs for a model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmgw_agent.weights import ModelFacts

_MIB: Final = 1 << 20
_BUFFERS: Final = 256 * _MIB
_BATCH: Final = 512
#: Bytes for each value of the cache, by type; facts count with two.
_CACHE_TYPES: Final = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 1.0625,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_1": 0.625,
    "q4_0": 0.5625,
    "iq4_nl": 0.5625,
}


def memory_needed(weights_bytes: int, facts: ModelFacts | None, args: Sequence[str], default_context: int) -> int:
    """Bytes for weights, the cache of the whole context and buffers.

    Without facts on the cache, three tenths of the weights stand for it: usual models need a fifth for 8192 tokens.
    """
    if facts is None or facts.kv_bytes_per_token is None:
        return weights_bytes * 13 // 10 + _BUFFERS
    context = _number(args, ("-c", "--ctx-size"))
    if context is None:
        context = default_context
    elif context == 0:
        context = facts.context_length or default_context
    wide = [
        _CACHE_TYPES.get((_value(args, names) or "f16").lower(), 2.0)
        for names in (("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"))
    ]
    cache = int(facts.kv_bytes_per_token * context * sum(wide) / 4)
    # One row of figures for each word of the vocabulary and token of a batch.
    logits = (facts.vocabulary or 0) * 4 * (_number(args, ("-ub", "--ubatch-size")) or _BATCH)
    return weights_bytes + cache + logits + _BUFFERS


def _value(args: Sequence[str], names: Sequence[str]) -> str | None:
    """The last one counts, as with llama-server."""
    found = None
    for at, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:
            found = value if equals else args[at + 1] if at + 1 < len(args) else None
    return found


def _number(args: Sequence[str], names: Sequence[str]) -> int | None:
    value = _value(args, names)
    return int(value) if value is not None and value.isascii() and value.isdigit() else None
