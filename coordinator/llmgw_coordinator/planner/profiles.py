"""From a model's profiles to assignments and back: what a replica is to run, and whether it runs that already."""

from __future__ import annotations

from llmgw_coordinator.planner.room import Need
from llmgw_proto.records import AssignmentRecord, ModelSpec, Profile
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
    )


def assignment_for(
    spec: ModelSpec, profile: Profile, *, replica: str, epoch: int, gpus: list[str], tried: list[str]
) -> AssignmentRecord:
    return AssignmentRecord(
        shard=f"{replica}.0",
        replica=replica,
        model=spec.name,
        epoch=epoch,
        engine=profile.engine,
        version=profile.version,
        source=spec.source,
        args=profile.args,
        env=profile.env,
        command=profile.command,
        health_path=profile.health_path,
        capabilities=profile.capabilities,
        gpus=gpus,
        memory_bytes=memory_of(profile),
        policy=spec.routing.policy,
        drain_seconds=spec.drain_seconds,
        generation=spec.generation,
        node_selector=profile.node_selector,
        tried=tried,
    )


def profile_of(spec: ModelSpec, record: AssignmentRecord) -> Profile | None:
    """The profile that the assignment was made from, judged by all that affects the process; None: it is out of date."""
    if record.source != spec.source:
        return None
    return next((profile for profile in spec.profiles if _same(profile, record)), None)


def _same(profile: Profile, record: AssignmentRecord) -> bool:
    return (
        profile.engine == record.engine
        and profile.version == record.version
        and profile.gpus == len(record.gpus)
        and profile.args == record.args
        and profile.env == record.env
        and profile.command == record.command
        and profile.node_selector == record.node_selector
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
