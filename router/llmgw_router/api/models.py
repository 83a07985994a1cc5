"""``/v1/models``: one list out of what all engines say, their unknown fields kept. Pure."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from llmgw_router.api.routes import MODELS
from llmgw_router.errors import ApiError
from llmgw_router.table.directory import Table
from llmgw_router.table.replica import Replica

_encode = msgspec.json.Encoder().encode


def card(name: str, replicas: tuple[Replica, ...], started: int) -> dict[str, object]:
    """What is known about one model: an engine's own words where it has said some, and the smallest context of all replicas."""
    found: dict[str, object] = next((each.card[name] for each in replicas if name in each.card), {})
    merged: dict[str, object] = {"id": name, "object": "model", "created": started, "owned_by": "llmgw", **found}
    merged["id"] = name
    lengths = [each.spec.max_model_len for each in replicas if each.spec.max_model_len is not None]
    lengths += [length for each in replicas if isinstance(length := each.card.get(name, {}).get("max_model_len"), int)]
    if lengths:
        merged["max_model_len"] = min(lengths)
    return merged


def listing(table: Table, started: int) -> bytes:
    cards = [card(name, replicas, started) for name, replicas in table.models.items()]
    return _encode({"object": "list", "data": cards})


def one(table: Table, path: bytes, started: int) -> bytes:
    """The card of the model that the path names; ids may hold slashes, plain or as ``%2F``, and any Unicode, percent-encoded.

    Raises:
        ApiError: 404.
    """
    raw = path[len(MODELS) + 1 :].decode("latin-1")
    try:
        name = unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise ApiError(400, "bad_target", "The model's name in the path is not percent-encoded UTF-8.") from None
    for candidate in (name, name.rstrip("/")):
        replicas = table.models.get(candidate)
        if replicas is not None:
            return _encode(card(candidate, replicas, started))
    raise ApiError(
        404, "model_not_found", f"The model {name!r} does not exist here; GET /v1/models lists those that do.", param="model"
    )
