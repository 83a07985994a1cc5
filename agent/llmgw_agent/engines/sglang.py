"""SGLang, from an environment that the agent installed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

from llmgw_agent.engines.base import Checked, Facts, Launch, Located, Pattern, Place
from llmgw_agent.engines.client import EngineClient
from llmgw_agent.engines.environment import GIB, count_requests, environment_of, given, number_of
from llmgw_agent.engines.facts import listed_facts
from llmgw_agent.engines.hf_engine import HfEngine, meeting
from llmgw_agent.engines.log_patterns import COMMON_PATTERNS, WEIGHTS_PATTERNS
from llmgw_agent.engines.split import split_of
from llmgw_agent.install.shelf import Shelf
from llmgw_proto.records import AssignmentRecord

_PROCESSES_BYTES = 2 * GIB
_CPU_CACHE_BYTES = 2 * GIB


class Sglang(HfEngine):
    title: ClassVar[str] = "SGLang"
    memory_flag: ClassVar[str] = "--mem-fraction-static"
    memory_most: ClassVar[float] = 0.95
    smaller_on_gpus: ClassVar[tuple[str, ...]] = (
        *("--quantization", "--torchao-config", "--cpu-offload-gb", "--offload-group-size", "--json-model-override-args"),
        "--load-format",
    )
    patterns: tuple[Pattern, ...] = (
        Pattern(
            re.compile(
                r"Model architectures (\[[^\]]+\]) are not supported|Unsupported architectures?:? (\S+)|"
                r"has model type `([^`]+)` but Transformers does not recognize"
            ),
            "this SGLang does not know the model's architecture ({0}).",
            "Use a newer SGLang or another model.",
            final=True,
        ),
        Pattern(
            re.compile(r"Not enough memory\. Please try to (?:increase|set)|Loading weights failed.*memory"),
            "after loading the weights no memory is left for the KV cache.",
            "Use more GPUs or a smaller quantisation, or raise --mem-fraction-static.",
            final=True,
        ),
        *WEIGHTS_PATTERNS,
        *COMMON_PATTERNS,
    )

    def __init__(self, shelf: Shelf) -> None:
        super().__init__("sglang", shelf)

    def host_memory(self, wish: AssignmentRecord, size: int) -> int:
        if wish.gpus:
            return _PROCESSES_BYTES * (1 + len(wish.gpus))
        return size + size // 10 + _CPU_CACHE_BYTES + _PROCESSES_BYTES

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        assert checked.weights is not None
        split, gang = split_of(wish), place.gang
        argv = [*located.argv, "--model-path", str(checked.weights), "--served-model-name", wish.model]
        argv += ["--host", place.host, "--port", str(place.port)]
        if split.tensor > 1:
            argv += ["--tensor-parallel-size", str(split.tensor)]
        if split.pipeline > 1:
            argv += ["--pipeline-parallel-size", str(split.pipeline)]
        if gang is not None:
            host = f"[{gang.head.address}]" if ":" in gang.head.address else gang.head.address
            argv += ["--nnodes", str(len(gang.members)), "--node-rank", str(gang.rank)]
            argv += ["--dist-init-addr", f"{host}:{gang.head.port}"]
        if not wish.gpus and not given(wish.args, "--device"):
            argv += ["--device", "cpu"]
        if not given(wish.args, "--enable-metrics"):
            argv.append("--enable-metrics")
        if not given(wish.args, "--enable-cache-report"):
            argv.append("--enable-cache-report")
        environment = environment_of(located, wish, meeting(place, "SGLANG_HOST_IP")) | {"SGLANG_API_KEY": place.api_key}
        return Launch([*argv, *wish.args], environment)

    def capabilities(self, wish: AssignmentRecord) -> list[str]:
        if wish.capabilities is not None:
            return wish.capabilities
        if given(wish.args, "--is-embedding"):
            return ["embeddings"]
        return ["chat", "completions"]

    def health_path(self, wish: AssignmentRecord) -> str:
        return "/health"

    async def busy(self, client: EngineClient) -> bool | None:
        return await count_requests(client, "sglang:num_running_reqs", "sglang:num_queue_reqs")

    async def facts(self, client: EngineClient, wish: AssignmentRecord) -> Facts:
        facts = await listed_facts(client, wish.model)
        return replace(facts, max_concurrency=number_of(wish.args, "--max-running-requests"))
