"""How vLLM and SGLang are told to publish their KV-cache events, and where the agent then reads them.

They publish over Unix sockets in a folder that only the agent's user can enter, since whoever reads the events reads the
prompts. A port would be open to every user of the host, and to the network as well: of an address that is no wildcard both
engines think that a subscriber listens there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from llmgw_agent.engines.base import Launch
from llmgw_proto.records import AssignmentRecord, ShardRole

Wanted: TypeAlias = Literal["auto", "on", "off"]

ENGINES = frozenset({"vllm", "sglang"})
#: Policies of routers that choose by what is really cached; ``kv`` and whatever is derived from it.
POLICY = "kv"
#: What the engine keeps for replays, in batches.
RING = 10_000
#: In bytes; longer paths do not fit into a socket's address.
_LONGEST_PATH = 100


@dataclass(frozen=True, slots=True)
class KvSockets:
    """ZMQ endpoints of one attempt, and the topic that its messages carry."""

    publish: str
    replay: str
    topic: str

    @classmethod
    def of(cls, folder: Path, attempt: str, wish: AssignmentRecord) -> KvSockets:
        """The same for the agent's next life. ``folder`` holds the sockets."""
        base = str(folder / f"{_mark(wish.shard)}{attempt[:8]}")
        if len(os.fsencode(base)) > _LONGEST_PATH:
            # A name without a file; the attempt's number cannot be guessed, though it can be listed on the host.
            base = f"@llmgw-kv-{attempt}"
        return cls(f"ipc://{base}.pub", f"ipc://{base}.rep", f"kv@{wish.shard}@{wish.model}")


def wants_kv_events(wanted: Wanted, wish: AssignmentRecord) -> bool:
    """Of a replica over several nodes only the head publishes."""
    if wish.engine not in ENGINES or wish.role is not ShardRole.HEAD or wanted == "off":
        return False
    return wanted == "on" or (wish.policy or "").partition("_")[0] == POLICY


def with_kv_events(launch: Launch, sockets: KvSockets) -> Launch:
    settings = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": sockets.publish,
        "replay_endpoint": sockets.replay,
        "buffer_steps": RING,
        "topic": sockets.topic,
    }
    return replace(launch, argv=[*launch.argv, "--kv-events-config", json.dumps(settings, separators=(",", ":"))])


def prepare_folder(folder: Path, shard: str) -> None:
    """Makes it if need be, and removes what an engine of the shard left there that was killed. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.glob(f"{_mark(shard)}*"):
        path.unlink(missing_ok=True)


def prune_sockets(folder: Path, shards: Collection[str]) -> None:
    """Removes what is left of all shards but these."""
    marks = {_mark(shard) for shard in shards}
    try:
        left = [path for path in folder.iterdir() if path.name[:8] not in marks]
        for path in left:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _mark(shard: str) -> str:
    return hashlib.sha256(shard.encode()).hexdigest()[:8]
