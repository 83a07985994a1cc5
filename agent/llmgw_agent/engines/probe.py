"""Readiness: the health endpoint says yes, and a real request gives a real answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgw_agent.engines.client import Answer, EngineClient, EngineSilentError

#: A first token may need the engine to compile or to page in weights.
FIRST_ANSWER_SECONDS = 120.0


def probe_request(capability: str, model: str) -> tuple[str, dict[str, Any]] | None:
    """Path and body of the smallest request for a capability; None for one that only the health endpoint vouches for."""
    if capability == "chat":
        messages = [{"role": "user", "content": "Hi"}]
        return "/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 1}
    if capability == "completions":
        return "/v1/completions", {"model": model, "prompt": "Hi", "max_tokens": 1}
    if capability == "embeddings":
        return "/v1/embeddings", {"model": model, "input": "Hi"}
    if capability == "responses":
        return "/v1/responses", {"model": model, "input": "Hi", "max_output_tokens": 1, "store": False}
    if capability == "messages":
        messages = [{"role": "user", "content": "Hi"}]
        return "/v1/messages", {"model": model, "messages": messages, "max_tokens": 1}
    return None


async def probe(client: EngineClient, model: str, capabilities: Sequence[str], *, sure: bool) -> list[str]:
    """Asks for one token (or one vector) and returns the capabilities that hold.

    With ``sure`` the capabilities were chosen by the operator: all are returned and one of them is tried. Without, each one
    that can be tried must answer to be kept.

    Raises:
        EngineSilentError: nothing answered as it should; the text has the engine's own words.
    """
    requests = [(name, request) for name in capabilities if (request := probe_request(name, model)) is not None]
    if not requests:
        return list(capabilities)
    failed: dict[str, Answer] = {}
    for name, (path, body) in requests:
        answer = await client.post(path, body, FIRST_ANSWER_SECONDS)
        if not _is_real(answer):
            failed[name] = answer
        elif sure:
            return list(capabilities)
    if len(failed) == len(requests):
        name, answer = next(iter(failed.items()))
        raise EngineSilentError(f"the first {name} request was answered {answer.status}: {answer.excerpt}")
    return [name for name in capabilities if name not in failed]


def _is_real(answer: Answer) -> bool:
    body = answer.json
    if answer.status != 200 or not isinstance(body, dict):
        return False
    # One token may be no text yet, so a response or a message may rightly be empty.
    return bool(body.get("choices") or body.get("data")) or body.get("object") == "response" or body.get("type") == "message"
