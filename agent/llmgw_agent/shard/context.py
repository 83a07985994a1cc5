"""What all workers share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp

from llmgw_agent.config import AgentConfig
from llmgw_agent.engines.base import Host
from llmgw_agent.engines.registry import Drivers
from llmgw_agent.engines.rehearse import Rehearsals
from llmgw_agent.hardware.bandwidth.errors import PeerUnreachableError
from llmgw_agent.install.installer import Installer
from llmgw_agent.process.identity import Owner
from llmgw_agent.process.isolation import InGroups, Isolation
from llmgw_agent.process.ports import Ports
from llmgw_agent.publisher import Publisher
from llmgw_agent.shard.connections import Connections
from llmgw_agent.shard.gpus import Gpus
from llmgw_agent.shard.state import StateDir, file_name
from llmgw_agent.weights import WeightStore
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_proto import agent_pb2

Measure: TypeAlias = Callable[[agent_pb2.BandwidthRequest], Awaitable[agent_pb2.BandwidthResult]]


async def _untested(request: agent_pb2.BandwidthRequest) -> agent_pb2.BandwidthResult:
    raise PeerUnreachableError("the agent has only just started")


@dataclass(slots=True)
class Context:
    config: AgentConfig
    clock: Clock
    store: Store
    boot: str
    objection: Callable[[], Awaitable[str | None]]
    """Why what is in the store must not be believed; None if it is the agent's own."""
    publisher: Publisher
    state: StateDir
    drivers: Drivers
    ports: Ports
    gpus: Gpus
    session: aiohttp.ClientSession
    installer: Installer
    weights: WeightStore
    memory: Callable[[], Host]
    connections: Connections
    isolation: Isolation = field(default_factory=InGroups)
    """How engines are kept apart."""
    measure: Measure = _untested
    """Tests the link to another node."""
    topology: Callable[[], Mapping[str, Any]] = dict
    """What connects this node's devices and networks, as the inventory has it."""
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    spread: Callable[[], float] = random.random
    checkpoint: Callable[[str], None] = lambda _: None
    """Called with the name of each step whose interruption must do no harm; tests end the agent there."""
    cluster_id: str = ""
    """Empty until the agent has joined a cluster for the first time."""
    engines_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when another engine is here, or is to be installed."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with the node, by subject; published with its status."""

    @property
    def node(self) -> str:
        return self.config.node.name

    @property
    def owner(self) -> Owner:
        """Whose mark engines carry."""
        return Owner(self.cluster_id, self.node)

    @property
    def kv_folder(self) -> Path:
        """Sockets for KV-cache events."""
        return self.config.state_dir / "kv"

    def log_folder(self, shard: str) -> Path:
        return log_folder(self.config.state_dir, shard)


def log_folder(state_dir: Path, shard: str) -> Path:
    return state_dir / "logs" / file_name(shard)
