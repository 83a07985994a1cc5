"""The real outside world: etcd."""

from __future__ import annotations

from llmgw_agent.config import AgentConfig
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.client import EtcdStore


async def connect(config: AgentConfig, clock: Clock) -> Store:
    """Returns at once; a store that does not answer is waited for later.

    Raises:
        StoreRefusedError: an endpoint cannot be used.
    """
    return EtcdStore(config.etcd, clock)
