"""Which shard a process belongs to, as GPUs name their users by pid."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw_agent.process.identity import Marker, Owner, read_environment, read_stat

#: A process is found to be an engine's by its ancestors; no real tree is deeper.
_DEEPEST = 64


def shard_of(pid: int, owner: Owner, leaders: Mapping[int, str]) -> str | None:
    """None if it is not an engine's of this node. ``leaders``: shards by the pid of their engine's first process.

    Engines may overwrite their environment with a title, so those pids count as well as the marks in it.
    """
    for _ in range(_DEEPEST):
        if pid in leaders:
            return leaders[pid]
        stat = read_stat(pid)
        if stat is None:
            return None
        if stat.session in leaders:
            return leaders[stat.session]
        # Last: the environment of a process that hangs in its driver may not come for as long as it hangs.
        marker = Marker.read(read_environment(pid))
        if marker is not None and marker.owner == owner:
            return marker.shard
        if stat.parent <= 1:
            return None
        pid = stat.parent
    return None
