"""One pass over all models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from llmgw_coordinator.planner import brake, ids
from llmgw_coordinator.planner.data import Assigned, Delete, Plan, World
from llmgw_coordinator.planner.fabric import Fabrics
from llmgw_coordinator.planner.model import ModelPlanner
from llmgw_coordinator.planner.place import Rooms
from llmgw_coordinator.planner.replica import Member, examine, replica_of
from llmgw_coordinator.planner.room import build_rooms, claims_of


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
    claims = claims_of(world.assignments, world.shards, estimates)
    rooms = Rooms(build_rooms(world.nodes, claims, world.settings), claims, world.nodes, Fabrics(world.fabrics))
    by_model = _by_model(world.assignments)
    examiner = _examiner(world)
    closed = {name for name, node in world.nodes.items() if node.closed is not None}
    draining = _draining(world)
    new_id = _id_source(world, text)

    for name, spec in sorted(world.models.items()):
        try:
            replicas = [replica_of(wishes, examiner, closed) for wishes in by_model.get(name, {}).values()]
            replicas.sort(key=lambda each: each.age)
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
        outcome.decisions.extend(Delete(tuple(each), "the model was removed") for _, each in sorted(by_model[name].items()))
    return outcome


def _by_model(assignments: Iterable[Assigned]) -> dict[str, dict[str, list[Assigned]]]:
    """By model and replica."""
    found: dict[str, dict[str, list[Assigned]]] = defaultdict(dict)
    for each in assignments:
        found[each.record.model].setdefault(each.record.replica, []).append(each)
    return found


def _examiner(world: World) -> Callable[[Assigned], Member]:
    shards = {(shard.node, shard.shard): shard for shard in world.shards}

    def member(assigned: Assigned) -> Member:
        place = (assigned.node, assigned.record.shard)
        return examine(
            assigned, shards.get(place), world.nodes.get(assigned.node), world.settings, settling=place in world.settling
        )

    return member


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
