"""Weights in a folder as the hub has them: what can be told before an engine spends minutes on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw_agent.errors import RejectedError

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_LARGEST_CONFIG = 8 << 20


@dataclass(frozen=True, slots=True)
class HfFolder:
    """``size`` in bytes, of the weights alone; ``heads`` and ``layers`` are None where config.json does not tell."""

    size: int
    heads: int | None = None
    layers: int | None = None


def check_hf(path: Path, engine: str, *, weights_needed: bool) -> HfFolder:
    """Looks at a folder with config.json and weights, or at one GGUF file.

    Raises:
        RejectedError: missing, unreadable, or not weights.
    """
    try:
        if path.is_file():
            if path.suffix != ".gguf":
                raise RejectedError(f"weights {path} is a file; {engine} needs the folder with config.json, or a .gguf file")
            return HfFolder(path.stat().st_size)
        files = list(path.iterdir())
        size = sum(each.stat().st_size for each in _loaded(files))
        config = _config(path)
    except FileNotFoundError as error:
        missing = "a dangling link" if path.exists() else "no such file or folder on this node"
        raise RejectedError(f"weights {error.filename or path}: {missing}; copy it there or correct source") from None
    except OSError as error:
        raise RejectedError(f"weights {path} cannot be read: {error.strerror}; check permissions and source") from error
    if weights_needed and not size:
        raise RejectedError(
            f"weights {path} has no file that ends in {', '.join(_WEIGHTS[:3])}; complete the folder or correct source"
        )
    return HfFolder(size, _count(config, "num_attention_heads"), _count(config, "num_hidden_layers"))


def _loaded(files: list[Path]) -> list[Path]:
    """The files of weights that an engine loads: many folders hold the same in several formats."""
    tensors = [each for each in files if each.suffix == ".safetensors"]
    # Mistral's own format lies beside the hub's.
    return [each for each in tensors if not each.name.startswith("consolidated")] or tensors or _others(files)


def _others(files: list[Path]) -> list[Path]:
    return [each for each in files if each.suffix in _WEIGHTS]


def _count(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name) or _mapping(config.get("text_config")).get(name)
    return value if isinstance(value, int) and value > 0 else None


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.exists():
        # Mistral's own format.
        if (folder / "params.json").exists():
            return {}
        raise RejectedError(f"weights {folder} has no config.json; complete the folder or correct source")
    if file.stat().st_size > _LARGEST_CONFIG:
        raise RejectedError(f"weights {file} is far too large for what it should be; copy it again")
    try:
        return _mapping(json.loads(file.read_bytes()))
    except ValueError as error:
        raise RejectedError(f"weights {file} is not JSON: {error}; copy it again") from error


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
