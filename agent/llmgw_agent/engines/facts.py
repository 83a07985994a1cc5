"""What ``GET /v1/models`` tells, in the dialects of llama.cpp and vLLM."""

from __future__ import annotations

from llmgw_agent.engines.base import Facts
from llmgw_agent.engines.client import EngineClient


async def listed_facts(client: EngineClient, model: str) -> Facts:
    """The name to use upstream: the model's own where the engine lists it, else the only one listed.

    Raises:
        EngineSilentError: no answer.
    """
    data = (await client.get("/v1/models", 10)).json
    entries = data.get("data") if isinstance(data, dict) else None
    cards = {card["id"]: card for card in entries or () if isinstance(card, dict) and isinstance(card.get("id"), str)}
    name = model if model in cards or len(cards) != 1 else next(iter(cards))
    card = cards.get(name, {})
    meta = card.get("meta")
    length = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return Facts(served_name=name, max_model_len=length if isinstance(length, int) and length > 0 else None)
