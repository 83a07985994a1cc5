"""What all workers share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from llmgw_agent.config import AgentConfig
from llmgw_agent.engines.base import Host
from llmgw_agent.engines.registry import Drivers
from llmgw_agent.install.installer import Installer
from llmgw_agent.process.identity import Owner
from llmgw_agent.process.ports import Ports
from llmgw_agent.publisher import Publisher
from llmgw_agent.shard.gpus import Gpus
from llmgw_agent.shard.state import StateDir, file_name
from llmgw_agent.weights import WeightStore
from llmgw_base.clock import Clock


@dataclass(slots=True)
class Context:
    config: AgentConfig
    clock: Clock
    boot: str
    publisher: Publisher
    state: StateDir
    drivers: Drivers
    ports: Ports
    gpus: Gpus
    session: aiohttp.ClientSession
    installer: Installer
    weights: WeightStore
    memory: Callable[[], Host]
    spread: Callable[[], float] = random.random
    checkpoint: Callable[[str], None] = lambda _: None
    """Called with the name of each step whose interruption must do no harm; tests end the agent there."""
    cluster_id: str = ""
    """Empty until the agent has joined a cluster for the first time."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with the node, by subject; published with its status."""

    @property
    def node(self) -> str:
        return self.config.node.name

    @property
    def owner(self) -> Owner:
        """Whose mark engines carry."""
        return Owner(self.cluster_id, self.node)

    def log_folder(self, shard: str) -> Path:
        return log_folder(self.config.state_dir, shard)


def log_folder(state_dir: Path, shard: str) -> Path:
    return state_dir / "logs" / file_name(shard)
