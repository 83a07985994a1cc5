"""The real outside world: etcd and the host's devices."""

from __future__ import annotations

from llmgw_agent.config import AgentConfig
from llmgw_agent.host.inventory import Devices
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.client import EtcdStore


async def connect(config: AgentConfig, clock: Clock) -> Store:
    """Returns at once; a store that does not answer is waited for later."""
    return EtcdStore(config.etcd, clock)


async def look_at_devices() -> Devices:
    return Devices()
