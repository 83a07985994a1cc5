"""The real outside world: etcd and the host's devices."""

from __future__ import annotations

from llmgw_agent.config import AgentConfig
from llmgw_agent.hardware.detect import Hardware, detect
from llmgw_agent.host.inventory import Devices
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.client import EtcdStore


async def connect(config: AgentConfig, clock: Clock) -> Store:
    """Returns at once; a store that does not answer is waited for later.

    Raises:
        StoreRefusedError: an endpoint cannot be used.
    """
    return EtcdStore(config.etcd, clock)


class DeviceLook:
    """Looks at GPUs, links and networks; a GPU that is lost keeps the identity it had at the look before."""

    def __init__(self) -> None:
        self._last: Hardware | None = None

    async def __call__(self) -> Devices:
        self._last = found = await detect(previous=self._last)
        return Devices(found.gpu_facts(), found.topology(), [str(problem) for problem in found.problems])
