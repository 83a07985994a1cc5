"""What an operator does to GPUs and ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmgw_ctl.api import NodeView
from llmgw_ctl.errors import BadInputError, NotFoundError
from llmgw_ctl.hardware_views import topology_of

if TYPE_CHECKING:
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.session import Session

#: Fewer characters of a UUID than these name nothing.
_SHORTEST = 6


async def hold(client: AdminClient, gpu: str, node: str | None, reason: str) -> dict[str, Any]:
    where, name = await _find(client, gpu, node)
    return {"node": where, **await client.gpu(where, name, "hold", {"reason": reason})}


async def lift(client: AdminClient, gpu: str, node: str | None) -> dict[str, Any]:
    where, name = await _find(client, gpu, node)
    return {"node": where, **await client.gpu(where, name, "lift", {})}


async def power(client: AdminClient, gpu: str, node: str | None, watts: float | None) -> dict[str, Any]:
    where, name = await _find(client, gpu, node)
    return {"node": where, **await client.gpu(where, name, "power", {"watts": watts})}


def parse_watts(text: str) -> float | None:
    """None for ``default``.

    Raises:
        BadInputError: no number above 0.
    """
    if text == "default":
        return None
    try:
        watts = float(text.removesuffix("W").strip())
    except ValueError:
        watts = 0.0
    if not 0 < watts < 1e6:
        raise BadInputError(f"{text!r} is not a power limit", "write watts, for example 350, or 'default'")
    return watts


def tell_standing(session: Session, found: dict[str, Any]) -> None:
    """Says what became of the GPU or port."""
    if not session.for_people:
        session.data(found)
    elif found.get("quarantine"):
        session.terminal.line(f"{found['subject']} on {found['node']} is in quarantine: {found['quarantine']}")
    else:
        session.terminal.line(f"{found['subject']} on {found['node']} may be used")


async def _find(client: AdminClient, gpu: str, node: str | None) -> tuple[str, str]:
    """The node, and the whole name."""
    nodes = await client.nodes() if node is None else [await client.node(node)]
    found = matching(nodes, gpu)
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        names = ", ".join(f"{uuid} on {where}" for where, uuid in found[:4])
        raise BadInputError(f"{gpu!r} fits {len(found)} GPUs: {names}", "write more of the UUID, or name the node with --node")
    if node is not None:
        return node, gpu
    if ":" in gpu:
        raise BadInputError(f"{gpu!r} is a port", "name its node with --node")
    raise NotFoundError(f"there is no gpu {gpu!r}", "see `llmgwctl gpu list` for those there are")


def matching(nodes: Sequence[NodeView], gpu: str) -> list[tuple[str, str]]:
    """(node, UUID) of GPUs and MIG instances with this UUID, or of those whose UUID begins so."""
    uuids = [(node.get("name", ""), uuid) for node in nodes for uuid in _uuids(node)]
    exact = [each for each in uuids if each[1] == gpu]
    return exact or [each for each in uuids if len(gpu) >= _SHORTEST and each[1].startswith(gpu)]


def _uuids(node: NodeView) -> list[str]:
    whole = [gpu.get("uuid") for gpu in topology_of(node).get("gpus", [])]
    listed = [gpu.get("uuid") for gpu in (node.get("inventory") or {}).get("gpus", [])]
    return list(dict.fromkeys(str(uuid) for uuid in [*whole, *listed] if uuid))
