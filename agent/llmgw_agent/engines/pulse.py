"""What an engine's own metrics tell of its work, under the names that vLLM, SGLang and llama.cpp give them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmgw_agent.engines.client import EngineClient

PULSE_TIMEOUT = 2.0

_REQUESTS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
)
#: Each of these changes only when the engine itself gets on, not when a request arrives. Counts of finished tokens are not
#: enough: llama.cpp and some versions of SGLang raise theirs at a request's end, so steps and cache use count too.
_WORK = (
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:generation_tokens_total",
    "sglang:realtime_tokens_total",
    "sglang:num_used_tokens",
    "sglang:inter_token_latency_seconds_count",
    "sglang:time_to_first_token_seconds_count",
    "llamacpp:n_decode_total",
    "llamacpp:tokens_predicted_total",
)
_TOKENS = ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total")
_DECODE_SECONDS = "llamacpp:tokens_predicted_seconds_total"
_LINE = re.compile(rb"^((?:vllm|sglang|llamacpp):\w+)(?:\{[^\n]*\})? ([0-9.eE+-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pulse:
    """``requests``: running and waiting. ``work``: figures of which at least one changes while the engine gets on."""

    requests: int
    work: tuple[tuple[str, float], ...]
    tokens: float | None = None
    """Generated since the engine started."""
    decode_seconds: float | None = None
    """Spent on those, summed over requests; of engines that count tokens only when a request has ended."""


async def read_pulse(client: EngineClient) -> Pulse | None:
    """None if the engine has no metrics that are known here.

    Raises:
        EngineSilentError: no answer.
    """
    answer = await client.get("/metrics", PULSE_TIMEOUT)
    return parse_pulse(answer.body) if answer.status == 200 else None


def parse_pulse(text: bytes) -> Pulse | None:
    """Reads Prometheus text; sums over labels."""
    requests: float | None = None
    work: dict[str, float] = {}
    decode: float | None = None
    for line in _LINE.finditer(text):
        name = line[1].decode()
        try:
            value = float(line[2])
        except ValueError:
            continue
        if name in _REQUESTS:
            requests = (requests or 0.0) + value
        elif name == _DECODE_SECONDS:
            decode = (decode or 0.0) + value
        elif name in _WORK:
            work[name] = work.get(name, 0.0) + value
    if requests is None or not work:
        return None
    tokens = next((work[name] for name in _TOKENS if name in work), None)
    return Pulse(round(requests), tuple(sorted(work.items())), tokens, decode)
