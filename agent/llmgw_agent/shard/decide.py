"""What a new wish means for what is there already. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from llmgw_agent.shard.state import fingerprint
from llmgw_proto.records import AssignmentRecord


@dataclass(frozen=True, slots=True)
class Refuse:
    """The wish is older than what is known."""

    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing changes for the engine; only what is published may."""


@dataclass(frozen=True, slots=True)
class Replace:
    """What runs must go, then the new wish starts."""


Verdict: TypeAlias = Refuse | Keep | Replace


def weigh(current: AssignmentRecord | None, new: AssignmentRecord, finished: int) -> Verdict:
    """``finished``: the last epoch of this shard that ended here, 0 if none did."""
    if new.epoch <= finished:
        return Refuse(f"epoch {new.epoch} has ended on this node; a new assignment needs an epoch above {finished}")
    if current is None:
        return Replace()
    if new.epoch < current.epoch:
        return Refuse(f"epoch {new.epoch} is older than {current.epoch}, which this node has")
    return Keep() if fingerprint(new) == fingerprint(current) else Replace()
