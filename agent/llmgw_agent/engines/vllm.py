"""vLLM, from an environment that the agent installed."""

from __future__ import annotations

import re
from dataclasses import replace

from llmgw_agent.engines.base import Available, Checked, Facts, Host, Launch, Located, Pattern, Place
from llmgw_agent.engines.client import EngineClient
from llmgw_agent.engines.environment import (
    COMMON_PATTERNS,
    GIB,
    EnvironmentEngine,
    count_requests,
    environment_of,
    given,
    number_of,
    value_of,
)
from llmgw_agent.engines.facts import listed_facts
from llmgw_agent.engines.hf_folder import check_hf, check_parallel
from llmgw_agent.engines.weights import path_of
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.shelf import Shelf
from llmgw_proto.engines import check_args, check_env
from llmgw_proto.records import AssignmentRecord

#: On CPU vLLM takes nearly all of the host's memory for its cache unless it is told how much, in GiB.
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
CPU_CACHE_GIB = 4
_PROCESSES_BYTES = 3 * GIB // 2


class Vllm(EnvironmentEngine):
    patterns: tuple[Pattern, ...] = (
        Pattern(
            re.compile(
                r"Model architectures (\[[^\]]+\]) (?:are not supported|failed to be inspected)|"
                r"has model type `([^`]+)` but Transformers does not recognize"
            ),
            "this vLLM does not know the model's architecture ({0}).",
            "Use a newer vLLM or another model.",
            final=True,
        ),
        Pattern(
            re.compile(
                r"larger than the available KV cache memory|"
                r"larger than the maximum number of tokens that can be stored in KV cache"
            ),
            "the KV cache is too small for even one request of the model's full length.",
            "Lower --max-model-len, raise --gpu-memory-utilization, or use more GPUs.",
            final=True,
        ),
        Pattern(
            re.compile(r"No available memory for the cache blocks"),
            "after loading the weights no memory is left for the KV cache.",
            "Use more GPUs or a smaller quantisation, or raise --gpu-memory-utilization.",
            final=True,
        ),
        Pattern(
            re.compile(r"Free memory on device (?:\S+ )?\(([^)]+)\).*less than desired GPU memory utilization"),
            "the GPU has only {0} free, less than vLLM is to take.",
            "See what else uses the GPU, or lower --gpu-memory-utilization.",
        ),
        Pattern(
            re.compile(r"max_model_len \((\d+)\) is greater than the derived"),
            "--max-model-len {0} is more than the model was made for.",
            "Lower it.",
            final=True,
        ),
        Pattern(
            re.compile(r"(?:attention heads|num_heads).*must be divisible by (?:tensor parallel size|tp_size)"),
            "the model's attention heads cannot be split over so many GPUs.",
            "Take another number of GPUs.",
            final=True,
        ),
        Pattern(
            re.compile(
                r"Cannot find any model weights with `?([^`\s]+)|does not appear to have a file named (\S+)|"
                r"FileNotFoundError: .*?No such file or directory: '([^']+)'"
            ),
            "a file of the weights is missing ({0}).",
            "Complete the folder, or correct source.",
            final=True,
        ),
        Pattern(
            re.compile(r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization"),
            "the weights are damaged.",
            "Fetch or copy them again.",
            final=True,
        ),
        Pattern(
            re.compile(r"Value error, (.{1,200})"),
            "vLLM refuses its settings: {0}.",
            "Correct the model's args.",
            final=True,
        ),
        *COMMON_PATTERNS,
    )

    def __init__(self, shelf: Shelf) -> None:
        super().__init__("vllm", shelf)

    def check(self, wish: AssignmentRecord, host: Host, weights: Available | None = None) -> Checked:
        problem = check_args(self.name, wish.args) or check_env(wish.env)
        if problem is not None:
            raise RejectedError(problem)
        path = path_of(wish.source, weights)
        dummy = value_of(wish.args, "--load-format") == "dummy"
        found = check_hf(path, "vLLM", weights_needed=not dummy)
        check_parallel(found.heads, len(wish.gpus))
        need = wish.memory_bytes or found.size + found.size // 10 + _cpu_cache(wish) * GIB + _PROCESSES_BYTES
        return Checked(path, need)

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        assert checked.weights is not None
        argv = [*located.argv, "--model", str(checked.weights), "--served-model-name", wish.model]
        argv += ["--host", place.host, "--port", str(place.port)]
        if len(wish.gpus) > 1:
            argv += ["--tensor-parallel-size", str(len(wish.gpus))]
        if not given(wish.args, "--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details"):
            argv.append("--enable-prompt-tokens-details")
        if not given(wish.args, "--disable-uvicorn-access-log", "--no-disable-uvicorn-access-log"):
            # A line for each health check would push out what matters.
            argv.append("--disable-uvicorn-access-log")
        defaults = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if not wish.gpus:
            defaults[CPU_CACHE] = str(CPU_CACHE_GIB)
        environment = environment_of(located, wish, defaults) | {"VLLM_API_KEY": place.api_key}
        return Launch([*argv, *wish.args], environment)

    def capabilities(self, wish: AssignmentRecord) -> list[str]:
        if wish.capabilities is not None:
            return wish.capabilities
        return ["chat", "completions", "embeddings", "responses", "messages", "tokenize"]

    def health_path(self, wish: AssignmentRecord) -> str:
        return "/health"

    async def busy(self, client: EngineClient) -> bool | None:
        return await count_requests(client, "vllm:num_requests_running", "vllm:num_requests_waiting")

    async def facts(self, client: EngineClient, wish: AssignmentRecord) -> Facts:
        facts = await listed_facts(client, wish.model)
        return replace(facts, max_concurrency=number_of(wish.args, "--max-num-seqs"))


def _cpu_cache(wish: AssignmentRecord) -> int:
    """GiB of host memory for the KV cache; 0 on GPUs."""
    if wish.gpus:
        return 0
    text = wish.env.get(CPU_CACHE, str(CPU_CACHE_GIB))
    if not (text.isascii() and text.isdigit()):
        raise RejectedError(f"env: {CPU_CACHE}={text!r} is not a whole number of GiB; correct it")
    return int(text)
