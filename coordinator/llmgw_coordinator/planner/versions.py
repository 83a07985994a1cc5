"""Which version of an engine a replica gets on a node."""

from __future__ import annotations

from llmgw_coordinator.planner.gpus import same_class
from llmgw_coordinator.planner.room import Need, Room
from llmgw_proto.records import VersionOverride

#: Engines of which a node's own version can be wished by name. All of them also use RDMA between nodes by themselves.
BY_NAME = ("vllm", "sglang")


def stated(need: Need, room: Room, gpu_class: str | None) -> str | None:
    """What the profile says for this node and GPUs of this class (None: it uses no GPUs); None leaves it to the agent."""
    return next((each.version for each in need.versions if _matches(each, room, gpu_class)), need.version)


def shared(need: Need, room: Room, gpu_class: str | None) -> str:
    """The version that would run there, by the profile or else by the agent's own configuration; "" if that is not known.

    All shards of a replica must agree in it.
    """
    return stated(need, room, gpu_class) or room.version_of(need.engine)


def pinned(need: Need, room: Room, gpu_class: str | None) -> str | None:
    """What the wish of a shard says, so that all of them start the same also when an agent's configuration changes later."""
    found = stated(need, room, gpu_class)
    if found is None and need.engine in BY_NAME:
        found = room.version_of(need.engine) or None
    return found


def _matches(override: VersionOverride, room: Room, gpu_class: str | None) -> bool:
    if any(room.labels.get(key) != value for key, value in override.node_selector.items()):
        return False
    if override.gpu_class is None:
        return True
    return same_class(override.gpu_class, gpu_class) if gpu_class is not None else room.has_class(override.gpu_class)
