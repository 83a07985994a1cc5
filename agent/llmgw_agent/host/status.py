"""``nodes/<node>/status``: what changes often. Published when it has changed by enough to matter, at most every 5 s."""

from __future__ import annotations

import os
from collections.abc import Sequence

from llmgw_agent.config import AgentConfig
from llmgw_agent.host.disk import read_disks
from llmgw_agent.host.inventory import written_paths
from llmgw_agent.host.memory import read_memory
from llmgw_proto.records import NodeStatusRecord

EVERY_SECONDS = 5.0
OLDEST_SECONDS = 60.0
"""A status is published at least this often, so that its age means something."""
_MEMORY_STEP, _LOAD_STEP, _DISK_STEP = 128 << 20, 0.5, 256 << 20


def read_status(config: AgentConfig, problems: Sequence[str], now: float) -> NodeStatusRecord:
    return NodeStatusRecord(
        node=config.node.name,
        updated_at=now,
        memory_available_bytes=read_memory().available,
        load1=round(os.getloadavg()[0], 2),
        disks=read_disks(written_paths(config)),
        problems=list(problems),
    )


def worth_telling(last: NodeStatusRecord | None, new: NodeStatusRecord) -> bool:
    """Whether the difference matters to anybody. Pure."""
    if last is None or new.updated_at - last.updated_at >= OLDEST_SECONDS or new.problems != last.problems:
        return True
    if abs(new.memory_available_bytes - last.memory_available_bytes) >= _MEMORY_STEP:
        return True
    if abs(new.load1 - last.load1) >= _LOAD_STEP:
        return True
    before = {disk.path: disk.free_bytes for disk in last.disks}
    after = {disk.path: disk.free_bytes for disk in new.disks}
    return before.keys() != after.keys() or any(abs(after[path] - before[path]) >= _DISK_STEP for path in after)
