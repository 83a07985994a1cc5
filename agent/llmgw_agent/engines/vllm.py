"""vLLM, from an environment that the agent installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import llmgw_agent.engines.starters
from llmgw_agent.engines.base import Checked, Facts, Gang, Launch, Located, Pattern, Place
from llmgw_agent.engines.client import EngineClient
from llmgw_agent.engines.environment import GIB, count_requests, environment_of, given, number_of, value_of
from llmgw_agent.engines.facts import listed_facts
from llmgw_agent.engines.hf_engine import HfEngine, meeting
from llmgw_agent.engines.log_patterns import COMMON_PATTERNS, WEIGHTS_PATTERNS
from llmgw_agent.engines.split import older, split_of
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.shelf import Shelf
from llmgw_proto.records import AssignmentRecord

#: On CPU vLLM takes nearly all of the host's memory for its cache unless it is told how much, in GiB.
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
CPU_CACHE_GIB = 4
CPU_CACHE_FLAG = "--kv-cache-memory-bytes"
#: The first version that spreads a model over nodes without Ray.
SEVERAL_NODES = (0, 11, 1)
#: The first version that is known to take the nearest card of each GPU from the environment.
NEAREST_CARDS = (0, 32)
_PROCESSES_BYTES = 3 * GIB // 2
_HEADLESS = str(Path(llmgw_agent.engines.starters.__file__).parent / "vllm_headless.py")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Vllm(HfEngine):
    title: ClassVar[str] = "vLLM"
    memory_flag: ClassVar[str] = "--gpu-memory-utilization"
    memory_most: ClassVar[float] = 0.92
    smaller_on_gpus: ClassVar[tuple[str, ...]] = (
        *("--quantization", "-q", "--cpu-offload-gb", "--cpu-offload-params", "--offload-group-size", "--hf-overrides"),
        "--load-format",
    )
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
        *WEIGHTS_PATTERNS,
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

    def host_memory(self, wish: AssignmentRecord, size: int) -> int:
        if wish.gpus:
            return _PROCESSES_BYTES * (1 + len(wish.gpus))
        return size + size // 10 + _cpu_cache(wish) + _PROCESSES_BYTES

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        assert checked.weights is not None
        split, gang = split_of(wish), place.gang
        serves = gang is None or gang.rank == 0
        # Nodes that do not serve are started by another of vLLM's programs, which takes the weights without a flag.
        argv = [*located.argv, "--model"] if serves else [located.argv[0], _HEADLESS]
        argv += [str(checked.weights), "--served-model-name", wish.model]
        if serves:
            argv += ["--host", place.host, "--port", str(place.port)]
        if split.tensor > 1:
            argv += ["--tensor-parallel-size", str(split.tensor)]
        if split.pipeline > 1:
            argv += ["--pipeline-parallel-size", str(split.pipeline)]
        if gang is not None:
            argv += _rendezvous(gang, located.version)
        if not given(wish.args, "--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details"):
            argv.append("--enable-prompt-tokens-details")
        if not given(wish.args, "--disable-uvicorn-access-log", "--no-disable-uvicorn-access-log"):
            # A line for each health check would push out what matters.
            argv.append("--disable-uvicorn-access-log")
        environment = environment_of(located, wish, self._defaults(wish, located, place)) | {"VLLM_API_KEY": place.api_key}
        return Launch([*argv, *wish.args], environment)

    def _defaults(self, wish: AssignmentRecord, located: Located, place: Place) -> dict[str, str]:
        defaults = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if not wish.gpus and not given(wish.args, CPU_CACHE_FLAG):
            defaults[CPU_CACHE] = str(CPU_CACHE_GIB)
        if place.gang is not None and place.nearest_cards and not older(located.version, NEAREST_CARDS):
            defaults |= _cards(place.nearest_cards)
        return defaults | meeting(place, "VLLM_HOST_IP")

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


def _rendezvous(gang: Gang, version: str) -> list[str]:
    if older(version, SEVERAL_NODES):
        raise RejectedError(
            f"nodes: vLLM {version} cannot spread a model over nodes; use version "
            f"{'.'.join(map(str, SEVERAL_NODES))} or newer, or a profile with nodes: 1"
        )
    where = ["--nnodes", str(len(gang.members)), "--node-rank", str(gang.rank)]
    where += ["--master-addr", gang.head.address, "--master-port", str(gang.head.port)]
    return [*where, "--headless"] if gang.rank else where


def _cards(nearest: Mapping[str, str]) -> dict[str, str]:
    """For UCX only: NCCL finds the nearest of the cards that NCCL_IB_HCA lists by itself, and all of them when one fails."""
    pairs = ",".join(f"{gpu}={card}" for gpu, card in nearest.items())
    return {"VLLM_GPU_NIC_PCIE_MAPPING": pairs, "VLLM_NIC_SELECTION_VARS": "UCX_NET_DEVICES:1"}


def _cpu_cache(wish: AssignmentRecord) -> int:
    """Bytes of host memory for the KV cache of a CPU."""
    size = _bytes(value_of(wish.args, CPU_CACHE_FLAG) or "")
    # The variable goes before the flag.
    text = wish.env.get(CPU_CACHE) or ("" if size is not None else str(CPU_CACHE_GIB))
    if not text:
        return size or 0
    if not (text.isascii() and text.isdigit()):
        raise RejectedError(f"env: {CPU_CACHE}={text!r} is not a whole number of GiB; correct it")
    return int(text) * GIB


def _bytes(text: str) -> int | None:
    """A size as vLLM reads it: 25.6k is 25600, 25K is 25 × 1024. None for what its own parser is to refuse."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text)
    return int(float(found[1]) * _UNITS.get(found[2], 1)) if found is not None else None
