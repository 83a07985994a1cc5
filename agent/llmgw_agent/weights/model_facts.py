"""What is known of a model from its headers, whatever the format."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from .gguf import GgufHeader, Skipped
from .gguf_names import file_type
from .safetensors import SafetensorsHeader

_CACHE_BYTES: Final = 2  # of one cached value: engines keep keys and values in 16 bits unless told otherwise
_SHORT: Final = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class ModelFacts(BaseModel):
    """None means that the files do not say. Counts of layers, heads and so on are of the text model.

    ``kv_bytes_per_token``: memory for keys and values of one token in all layers, at 16 bits; an upper bound where some layers
    look at a window only. ``parameters`` is an estimate for packed formats. ``tensor_types`` maps type to number of elements.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: str  # gguf, safetensors, pickle
    architecture: str | None = None
    name: str | None = None
    parameters: int | None = None
    quantisation: str | None = None  # GGUF file type (Q4_K_M) or quantisation method (awq 4 bits)
    dtype: str | None = None
    tensor_types: dict[str, int] = {}
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    embedding_length: int | None = None
    context_length: int | None = None
    sliding_window: int | None = None
    vocabulary: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    tokenizer: str | None = None
    chat_template: bool = False
    parts: int = 1  # of a split GGUF
    weights_bytes: int = 0
    kv_bytes_per_token: int | None = None


def from_gguf(headers: list[GgufHeader], weights_bytes: int) -> ModelFacts:
    """``headers`` of all parts, the first first."""
    first = headers[0]
    architecture = first.text("general.architecture")

    def number(name: str) -> int | None:
        return first.number(f"{architecture}.{name}")

    layers = number("block_count")
    heads = first.numbers(f"{architecture}.attention.head_count")
    kv_heads = first.numbers(f"{architecture}.attention.head_count_kv") or heads
    embedding = number("embedding_length")
    key_length = number("attention.key_length")
    if key_length is None and embedding is not None and heads and max(heads):
        key_length = embedding // max(heads)
    types: dict[str, int] = {}
    for header in headers:
        for name, count in header.tensor_types.items():
            types[name] = types.get(name, 0) + count
    kind = first.number("general.file_type")
    return ModelFacts(
        format="gguf",
        architecture=architecture,
        name=first.text("general.name"),
        parameters=sum(header.elements for header in headers) or None,
        quantisation=file_type(kind) if kind is not None else max(types, key=types.__getitem__, default=None),
        tensor_types=types,
        layers=layers,
        heads=max(heads) if heads else None,
        kv_heads=max(kv_heads) if kv_heads else None,
        head_dim=key_length,
        embedding_length=embedding,
        context_length=number("context_length"),
        sliding_window=number("attention.sliding_window"),
        vocabulary=number("vocab_size") or first.length("tokenizer.ggml.tokens"),
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        tokenizer=first.text("tokenizer.ggml.model"),
        chat_template=isinstance(first.values.get("tokenizer.chat_template"), str | Skipped),
        parts=first.number("split.count") or len(headers),
        weights_bytes=weights_bytes,
        kv_bytes_per_token=_gguf_cache(first, architecture, layers, kv_heads, key_length),
    )


def _gguf_cache(
    header: GgufHeader, architecture: str | None, layers: int | None, kv_heads: list[int] | None, key_length: int | None
) -> int | None:
    if layers is None or not kv_heads or key_length is None:
        return None
    if header.number(f"{architecture}.attention.key_length_mla") is not None:
        return layers * key_length * _CACHE_BYTES  # latent attention keeps one compressed vector
    value_length = header.number(f"{architecture}.attention.value_length") or key_length
    per_layer = kv_heads if len(kv_heads) > 1 else kv_heads * min(layers, 1 << 16)
    return sum(per_layer) * (key_length + value_length) * _CACHE_BYTES


def from_config(config: dict[str, Any], headers: list[SafetensorsHeader], weights_bytes: int, kind: str) -> ModelFacts:
    """``config`` is config.json; models of several media have the text model's part in it under ``text_config``."""
    text = next(
        (each for name in ("text_config", "llm_config", "language_config") if isinstance(each := config.get(name), dict)), {}
    )
    inner = {**config, **text}
    layers = _count(inner, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    heads = _count(inner, "num_attention_heads", "n_head", "n_heads")
    kv_heads = _count(inner, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    if kv_heads is None:
        kv_heads = 1 if inner.get("multi_query") is True else heads
    embedding = _count(inner, "hidden_size", "n_embd", "d_model")
    head_dim = _count(inner, "head_dim")
    if head_dim is None and embedding is not None and heads:
        head_dim = embedding // heads
    types: dict[str, int] = {}
    for header in headers:
        for name, count in header.dtypes.items():
            types[name] = types.get(name, 0) + count
    quantisation, bits = _quantisation(config, inner)
    names = config.get("architectures")
    dtype = inner.get("torch_dtype") or inner.get("dtype")
    return ModelFacts(
        format=kind,
        architecture=str(names[0]) if isinstance(names, list) and names else _text(config.get("model_type")),
        name=_text(config.get("_name_or_path")) or None,
        parameters=_parameters(types, bits),
        quantisation=quantisation,
        dtype=_text(dtype) or (_SHORT.get(max(types, key=types.__getitem__)) if types else None),
        tensor_types=types,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        embedding_length=embedding,
        context_length=_count(inner, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
        sliding_window=_count(inner, "sliding_window") if inner.get("use_sliding_window") is not False else None,
        vocabulary=_count(inner, "vocab_size"),
        experts=_count(inner, "num_local_experts", "n_routed_experts", "num_experts"),
        experts_used=_count(inner, "num_experts_per_tok", "moe_topk"),
        weights_bytes=weights_bytes,
        kv_bytes_per_token=_config_cache(inner, layers, kv_heads, head_dim),
    )


def _config_cache(config: dict[str, Any], layers: int | None, kv_heads: int | None, head_dim: int | None) -> int | None:
    if layers is None:
        return None
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        layers = sum(1 for each in kinds if isinstance(each, str) and ("attention" in each and "linear" not in each))
    latent = _count(config, "kv_lora_rank")
    if latent is not None:
        return layers * (latent + (_count(config, "qk_rope_head_dim") or 0)) * _CACHE_BYTES
    if kv_heads is None or head_dim is None:
        return None
    value_dim = _count(config, "v_head_dim") or head_dim
    return layers * kv_heads * (head_dim + value_dim) * _CACHE_BYTES


def _quantisation(config: dict[str, Any], inner: dict[str, Any]) -> tuple[str | None, int | None]:
    section = inner.get("quantization_config") or config.get("compression_config")
    if not isinstance(section, dict):
        return None, None
    method = _text(section.get("quant_method")) or _text(section.get("quant_algo")) or "quantised"
    bits = _count(section, "bits", "w_bit") or (4 if section.get("load_in_4bit") is True else None)
    return (f"{method} {bits} bits" if bits is not None else method), bits


def _parameters(types: dict[str, int], bits: int | None) -> int | None:
    """Packed formats hold several parameters in one 32-bit element."""
    packed = sum(count for name, count in types.items() if name in ("I32", "U32", "U8"))
    plain = sum(types.values()) - packed
    if packed and bits:
        width = 32 if any(name in ("I32", "U32") for name in types) else 8
        return plain + packed * width // bits
    return plain + packed or None


def _count(section: dict[str, Any], *names: str) -> int | None:
    """The first of these that is a sensible number."""
    for name in names:
        value = section.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48:
            return value
    return None


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None
