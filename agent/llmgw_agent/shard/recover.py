"""After a start of the agent: which processes are whose. The choices are pure; :func:`look` reads disk and ``/proc``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llmgw_agent.process.home import home_of
from llmgw_agent.process.identity import Identity, Owner
from llmgw_agent.process.scan import Marked, find_logmons, find_marked
from llmgw_agent.shard.state import SavedAttempt, SavedProcess, SavedShard, StateDir, fingerprint
from llmgw_proto.records import AssignmentRecord


@dataclass(slots=True)
class Found:
    """What an earlier life of this agent left: state files, processes by shard, log writers by attempt."""

    saved: dict[str, SavedShard] = field(default_factory=dict)
    marked: dict[str, list[Marked]] = field(default_factory=dict)
    writers: dict[str, Identity] = field(default_factory=dict)

    def take_orphans(self, shard: str) -> list[Marked]:
        return self.marked.pop(shard, [])


def look(state: StateDir, owner: Owner) -> Found:
    """Blocks for some milliseconds per hundred processes of the host."""
    found = Found(saved=state.load_all(), writers=find_logmons(owner.node))
    for each in find_marked(owner.node, owner.cluster):
        found.marked.setdefault(each.marker.shard, []).append(each)
    return found


def choose(saved: SavedShard, marked: Sequence[Marked], running: Callable[[Identity], bool]) -> Identity | None:
    """The first process of the shard's engine, to be adopted; None if it runs no more (or never did).

    Pid, start time and boot id name one process for ever. Where the agent died between spawn and save there is only the mark,
    which carries the attempt that was saved before.
    """
    if saved.attempt is None:
        return None
    process = saved.process
    if process is not None:
        identity = Identity(process.pid, process.start_ticks, process.boot_id)
        return identity if running(identity) else None
    leaders = [each for each in marked if each.leader and each.marker.attempt == saved.attempt.id]
    return min((each.identity for each in leaders), key=lambda one: one.start_ticks, default=None)


def rebuild(
    node: str, wish: AssignmentRecord, api_key: str, host: str, marked: Sequence[Marked], now: float
) -> SavedShard | None:
    """The state of a shard whose state file is lost, from a running process that fulfils the wish; None if none does."""
    if wish.peers:
        # In which attempt of its replica it runs cannot be known any more.
        return None
    print_ = fingerprint(wish)
    for each in sorted(marked, key=lambda one: one.identity.start_ticks):
        marker = each.marker
        if each.leader and marker.wish == print_ and marker.epoch == wish.epoch:
            return SavedShard(
                node=node,
                assignment=wish,
                api_key=api_key,
                attempt=SavedAttempt(id=marker.attempt, wish=print_, host=host, port=marker.port),
                process=SavedProcess.of(each.identity, now, home_of(each.identity.pid, marker.attempt)),
            )
    return None
