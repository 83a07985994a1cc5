"""The memory that llama.cpp is expected to need."""

from __future__ import annotations

import pytest

from llmgw_agent.engines.llamacpp_memory import memory_needed
from llmgw_agent.weights import ModelFacts

MIB = 1 << 20
FACTS = ModelFacts(format="gguf", kv_bytes_per_token=4096, context_length=2048, vocabulary=0)


@pytest.mark.parametrize(
    ("args", "tokens", "share"),
    [
        ([], 8192, 1.0),
        (["-c", "1024"], 1024, 1.0),
        (["--ctx-size=512", "-c", "4096"], 4096, 1.0),
        (["-c", "0"], 2048, 1.0),
        (["-c", "lots"], 8192, 1.0),
        (["-ctk", "q8_0", "--cache-type-v", "f32"], 8192, (1.0625 + 4) / 4),
        (["-ctk", "unknown"], 8192, 1.0),
    ],
)
def test_the_cache_of_the_whole_context_counts(args: list[str], tokens: int, share: float) -> None:
    assert memory_needed(1000, FACTS, args, 8192) == 1000 + int(4096 * tokens * share) + 256 * MIB


def test_a_large_vocabulary_needs_buffers() -> None:
    facts = FACTS.model_copy(update={"vocabulary": 128_000})
    more = memory_needed(0, facts, ["-ub", "256"], 8192) - memory_needed(0, FACTS, [], 8192)
    assert more == 128_000 * 4 * 256


def test_without_facts_a_share_of_the_weights_stands_for_the_cache() -> None:
    assert memory_needed(1000, None, [], 8192) == 1300 + 256 * MIB
    assert memory_needed(1000, ModelFacts(format="gguf"), [], 8192) == 1300 + 256 * MIB
