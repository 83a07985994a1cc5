"""One pass over all models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from llmgw_coordinator.planner import brake, ids
from llmgw_coordinator.planner.data import Assigned, Delete, Plan, World
from llmgw_coordinator.planner.model import ModelPlanner
from llmgw_coordinator.planner.place import Rooms
from llmgw_coordinator.planner.replica import examine
from llmgw_coordinator.planner.room import build_rooms


def plan(world: World, text: ids.RandomText = ids.random_text) -> Plan:
    """Decides what brings the assignments nearer to the wish.

    Models are planned by name, each against the room that the earlier ones left. A model whose planning fails is reported in
    ``failures`` and nothing is decided for it; the others are planned all the same.
    """
    outcome = Plan()
    countable = brake.countable(world.nodes.values(), {each.node for each in world.assignments})
    vanished = brake.vanished_together(countable, world.settings)
    if vanished:
        outcome.problems.append(brake.explain(vanished, len(countable), world.settings))
    estimates = _estimates(world)
    rooms = Rooms(build_rooms(world.nodes, world.assignments, world.shards, estimates, world.settings))
    shards = {(shard.node, shard.shard): shard for shard in world.shards}
    by_model: dict[str, list[Assigned]] = defaultdict(list)
    for assigned in world.assignments:
        by_model[assigned.record.model].append(assigned)
    draining = _draining(world)
    new_id = _id_source(world, text)

    for name, spec in sorted(world.models.items()):
        try:
            replicas = [
                examine(
                    each,
                    shards.get((each.node, each.record.shard)),
                    world.nodes.get(each.node),
                    world.settings,
                    settling=(each.node, each.record.shard) in world.settling,
                )
                for each in by_model.get(name, ())
            ]
            planner = ModelPlanner(
                spec,
                replicas,
                rooms,
                estimate=estimates.get(name, 0),
                braked=bool(vanished),
                draining=name in draining,
                new_id=new_id,
            )
            result = planner.run()
        except Exception as error:  # noqa: BLE001 - whatever one model's spec does to the planner must not stop the others
            outcome.failures[name] = error
            continue
        outcome.decisions.extend(result.decisions)
        if result.reason:
            outcome.reasons[name] = result.reason
        if result.outdated:
            outcome.outdated[name] = result.outdated

    for name in sorted(by_model.keys() - world.models.keys() - world.unreadable_models):
        outcome.decisions.extend(Delete(each, "the model was removed") for each in by_model[name])
    return outcome


def _estimates(world: World) -> dict[str, int]:
    """By model, the most memory that an agent found one of its replicas to need; for profiles that do not state it."""
    found: dict[str, int] = {}
    for shard in world.shards:
        found[shard.model] = max(found.get(shard.model, 0), shard.memory_bytes)
    return found


def _draining(world: World) -> set[str]:
    """Models of which a live node is still stopping a replica."""
    wished = {(each.node, each.record.shard) for each in world.assignments}
    live = {name for name, node in world.nodes.items() if node.alive}
    return {shard.model for shard in world.shards if shard.node in live and (shard.node, shard.shard) not in wished}


def _id_source(world: World, text: ids.RandomText) -> Callable[[str], str]:
    taken = {each.record.replica for each in world.assignments} | {shard.replica for shard in world.shards}

    def new_id(model: str) -> str:
        made = ids.random_replica_id(model, taken, text)
        taken.add(made)
        return made

    return new_id
