"""Whether an engine can load a model, judged by its facts. Decisions only."""

from __future__ import annotations

from collections.abc import Collection

from .model_facts import ModelFacts

_HELPERS = {"clip": "a vision projector", "control_vector": "a control vector", "imatrix": "an importance matrix"}


def check_loadable(
    facts: ModelFacts, supported_architectures: Collection[str] | None, supported_types: Collection[str] | None
) -> str | None:
    """Why a llama.cpp that knows these architectures and tensor types cannot load the model; None when it can.

    None for a collection means that it is not known and not judged. Types are ggml's names (``Q4_K``), as in ``tensor_types``.
    """
    if facts.format != "gguf":
        return f"llama.cpp loads GGUF files, and this is {facts.format}; choose a GGUF of the model, or another engine"
    if facts.architecture is None:
        return "the GGUF header names no architecture; the file was not made for llama.cpp"
    if facts.architecture in _HELPERS:
        return f"the file is {_HELPERS[facts.architecture]}, not a model; name the model's own file"
    if supported_architectures is not None and facts.architecture not in supported_architectures:
        return (
            f"this node's llama.cpp does not know the architecture {facts.architecture!r}; "
            "install a newer llama.cpp, or use another engine"
        )
    if supported_types is not None:
        known = {each.upper() for each in supported_types}
        strange = sorted(each for each in facts.tensor_types if each.upper() not in known)
        if strange:
            return (
                f"this node's llama.cpp does not know the quantisation {', '.join(strange)}; "
                "install a newer llama.cpp, or choose a file with another quantisation"
            )
    return None
