from __future__ import annotations

import contextlib
import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights import MetadataError
from llmgw_agent.weights.facts import load, local_files, read_facts
from llmgw_agent.weights.model_facts import from_config
from llmgw_agent.weights.safetensors import SafetensorsHeader, read_safetensors
from llmgw_testing.steady import steady
from llmgw_testing.weights import gguf, safetensors

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, {"architecture": "LlamaForCausalLM", "kv_bytes_per_token": 131072, "head_dim": 128, "dtype": "bfloat16"}),
        (
            {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
            {"architecture": "gpt2", "kv_heads": 12, "context_length": 1024, "kv_bytes_per_token": 12 * 12 * 64 * 4},
        ),
        (
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": LLAMA | {"head_dim": 256, "sliding_window": 1024},
            },
            {"architecture": "Gemma3ForConditionalGeneration", "layers": 32, "head_dim": 256, "sliding_window": 1024},
        ),
        (
            LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 256, "num_experts_per_tok": 8},
            {"kv_bytes_per_token": 32 * 576 * 2, "experts": 256, "experts_used": 8},
        ),
        (
            LLAMA | {"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8},
            {"kv_bytes_per_token": 32768},
        ),
        (LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}, {"quantisation": "awq 4 bits"}),
        (LLAMA | {"quantization_config": {"quant_method": "fp8"}}, {"quantisation": "fp8"}),
        (LLAMA | {"sliding_window": 4096, "use_sliding_window": False}, {"sliding_window": None}),
        ({}, {"architecture": None, "layers": None, "kv_bytes_per_token": None, "parameters": None}),
        ({"num_hidden_layers": "x", "num_attention_heads": 0, "hidden_size": 8, "architectures": []}, {"head_dim": None}),
    ],
)
def test_config(config: dict[str, Any], expected: dict[str, object]) -> None:
    facts = from_config(config, [], 10, "safetensors")
    assert {name: getattr(facts, name) for name in expected} == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [*LLAMA, "text_config", "quantization_config", "layer_types", "kv_lora_rank", "head_dim", "dtype", "sliding_window"]


@steady
@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_config_gives_facts(config: dict[str, Any]) -> None:
    from_config(config, [SafetensorsHeader({"I32": 3})], 0, "safetensors")


def test_parameters_are_counted_and_estimated_where_packed() -> None:
    assert (
        from_config({}, [SafetensorsHeader({"BF16": 100}), SafetensorsHeader({"BF16": 20, "F32": 5})], 0, "x").parameters == 125
    )
    packed = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert from_config(packed, [SafetensorsHeader({"I32": 100, "F16": 10})], 0, "x").parameters == 810


def test_safetensors() -> None:
    header = read_safetensors(io.BytesIO(safetensors({"a": ("BF16", [2, 3], 12), "b": ("F32", [], 4)})).read)
    assert header == SafetensorsHeader({"BF16": 6, "F32": 1}, 16)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "ends inside"),
        (struct.pack("<Q", 1 << 40), "not a safetensors file"),
        (struct.pack("<Q", 10) + b"{}", "ends inside"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 2) + b"{x", "not JSON"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "wrong at 'a'"),
    ],
)
def test_wrong_safetensors(data: bytes, says: str) -> None:
    with pytest.raises(MetadataError, match=says):
        read_safetensors(io.BytesIO(data).read)


@steady
@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_any_safetensors_header_is_read_or_refused(header: dict[str, Any]) -> None:
    encoded = json.dumps(header).encode()
    with contextlib.suppress(MetadataError):
        read_safetensors(io.BytesIO(struct.pack("<Q", len(encoded)) + encoded).read)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"neither a config\.json nor"):
        read_facts(tmp_path, local_files(tmp_path))
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf(padding=10))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf({}))
    facts = read_facts(tmp_path, local_files(tmp_path))
    assert (facts.format, facts.parts, facts.parameters) == ("gguf", 2, 256)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(77))
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    facts = read_facts(tmp_path, local_files(tmp_path))
    assert (facts.format, facts.weights_bytes, facts.tokenizer, facts.chat_template) == ("pickle", 77, "tokenizer.model", False)
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F16", [4], 8)}))
    (tmp_path / "chat_template.jinja").write_text("x")
    facts = read_facts(tmp_path, local_files(tmp_path))
    assert (facts.format, facts.parameters, facts.chat_template) == ("safetensors", 4, True)


def test_facts_are_kept_and_read_again_when_a_file_changed(tmp_path: Path) -> None:
    path, cache = tmp_path / "m.gguf", tmp_path / "facts.json"
    path.write_bytes(gguf())
    first = load(path, [path], cache)
    kept = json.loads(cache.read_text())
    assert kept["facts"]["architecture"] == "llama"
    kept["facts"]["architecture"] = "from the cache"
    cache.write_text(json.dumps(kept))
    second, _ = load(path, [path], cache)
    assert second is not None
    assert second.architecture == "from the cache"
    path.write_bytes(gguf(padding=1))
    again, _ = load(path, [path], cache)
    assert first[0] is not None
    assert again == first[0].model_copy(update={"weights_bytes": path.stat().st_size})
    cache.write_text("{")
    assert load(path, [path], cache)[0] == again
