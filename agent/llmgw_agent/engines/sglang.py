"""SGLang, from an environment that the agent installed."""

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


class Sglang(EnvironmentEngine):
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
        *COMMON_PATTERNS,
    )

    def __init__(self, shelf: Shelf) -> None:
        super().__init__("sglang", shelf)

    def check(self, wish: AssignmentRecord, host: Host, weights: Available | None = None) -> Checked:
        problem = check_args(self.name, wish.args) or check_env(wish.env)
        if problem is not None:
            raise RejectedError(problem)
        path = path_of(wish.source, weights)
        dummy = value_of(wish.args, "--load-format") == "dummy"
        found = check_hf(path, "SGLang", weights_needed=not dummy)
        check_parallel(found.heads, len(wish.gpus))
        return Checked(path, wish.memory_bytes or found.size + found.size // 10 + 4 * GIB)

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        assert checked.weights is not None
        argv = [*located.argv, "--model-path", str(checked.weights), "--served-model-name", wish.model]
        argv += ["--host", place.host, "--port", str(place.port)]
        if len(wish.gpus) > 1:
            argv += ["--tensor-parallel-size", str(len(wish.gpus))]
        if not wish.gpus and not given(wish.args, "--device"):
            argv += ["--device", "cpu"]
        if not given(wish.args, "--enable-metrics"):
            argv.append("--enable-metrics")
        if not given(wish.args, "--enable-cache-report"):
            argv.append("--enable-cache-report")
        environment = environment_of(located, wish, {}) | {"SGLANG_API_KEY": place.api_key}
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
