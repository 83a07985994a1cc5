"""From a view of etcd to what the planner is given. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from llmgw_coordinator.planner import Assigned, Node, Settings, World
from llmgw_coordinator.state.view import Place, View


def world_of(
    view: View, gone_for: Mapping[str, float], witnessed: Container[str], settling: Iterable[Place], settings: Settings
) -> World:
    """
    Args:
        gone_for: seconds of absence of the nodes that are away.
        witnessed: nodes that this coordinator has seen alive.
        settling: shards whose failure is too fresh to act on.
    """
    return World(
        models={name: stored.record for name, stored in view.models.items()},
        nodes={
            name: Node(
                name,
                view.inventories[name].record if name in view.inventories else None,
                gone_for.get(name),
                name in witnessed,
                view.unread_nodes.get(name),
            )
            for name in view.nodes
        },
        assignments=[Assigned(node, stored.record, stored.create_revision) for (node, _), stored in view.assignments.items()],
        shards=[stored.record for stored in view.shards.values()],
        unreadable_models=frozenset(view.unread_models),
        settling=frozenset(settling),
        settings=settings,
        fabrics=[stored.record for _, stored in sorted(view.fabrics.items())],
    )
