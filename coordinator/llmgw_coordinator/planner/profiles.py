"""From a model's profiles to assignments and back: what a replica is to run, and whether it runs that already."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmgw_coordinator.planner.room import Need
from llmgw_proto.records import AssignmentRecord, ModelSpec, Profile, ShardRole
from llmgw_proto.records.model import parse_bytes


def memory_of(profile: Profile) -> int:
    """Bytes that the profile sets aside; 0 leaves it to the agent."""
    return parse_bytes(profile.memory) if profile.memory is not None else 0


def need_of(profile: Profile, estimate: int) -> Need:
    """What a node must offer. ``estimate`` stands in for an unstated memory: what the model's other replicas were found to
    need, 0 if that is not known either.
    """
    return Need(
        engine=profile.engine,
        gpus=profile.gpus,
        memory=memory_of(profile) or estimate,
        selector=tuple(sorted(profile.node_selector.items())),
        gpu_class=profile.gpu_class,
        nodes=profile.nodes,
        version=profile.version,
        versions=tuple(profile.versions),
    )


def assignment_for(
    spec: ModelSpec,
    profile: Profile,
    *,
    replica: str,
    epoch: int,
    gpus: list[str],
    tried: list[str],
    version: str | None,
    rank: int = 0,
    peers: Sequence[str] = (),
) -> AssignmentRecord:
    """``peers``: the nodes of all shards by rank, when there are several."""
    return AssignmentRecord(
        shard=f"{replica}.{rank}",
        replica=replica,
        model=spec.name,
        epoch=epoch,
        engine=profile.engine,
        version=version,
        source=spec.source,
        args=profile.args,
        env=profile.env,
        command=profile.command,
        health_path=profile.health_path,
        capabilities=profile.capabilities,
        gpus=gpus,
        memory_bytes=memory_of(profile),
        role=ShardRole.WORKER if rank else ShardRole.HEAD,
        rank=rank,
        peers=list(peers),
        policy=spec.routing.policy,
        drain_seconds=spec.drain_seconds,
        generation=spec.generation,
        node_selector=profile.node_selector,
        gpu_class=profile.gpu_class,
        tried=tried,
    )


def stated_version(profile: Profile, record: AssignmentRecord) -> bool:
    return profile.version == record.version


def profile_of(
    spec: ModelSpec, record: AssignmentRecord, version_holds: Callable[[Profile, AssignmentRecord], bool] = stated_version
) -> Profile | None:
    """The profile that the assignment was made from, judged by all that affects the process; None: it is out of date.

    ``version_holds`` judges the version, which may depend on the node.
    """
    if record.source != spec.source:
        return None
    return next((each for each in spec.profiles if _same(each, record) and version_holds(each, record)), None)


def _same(profile: Profile, record: AssignmentRecord) -> bool:
    return (
        profile.engine == record.engine
        and profile.gpus == len(record.gpus)
        and profile.args == record.args
        and profile.env == record.env
        and profile.command == record.command
        and profile.node_selector == record.node_selector
        and profile.gpu_class == record.gpu_class
        and profile.nodes == max(1, len(record.peers))
        and memory_of(profile) == record.memory_bytes
    )


def refreshed(spec: ModelSpec, profile: Profile, record: AssignmentRecord) -> AssignmentRecord:
    """The same wish with what the process need not be restarted for brought up to date; the very same if nothing is."""
    changed = {
        "policy": spec.routing.policy,
        "drain_seconds": spec.drain_seconds,
        "generation": spec.generation,
        "health_path": profile.health_path,
        "capabilities": profile.capabilities,
    }
    if all(getattr(record, name) == value for name, value in changed.items()):
        return record
    return record.model_copy(update=changed)
