"""A node with InfiniBand maps its fabric with the real tools; one without leaves etcd alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_proto import keyspace
from llmgw_proto.records import FabricMapRecord, FabricPortsRecord
from llmgw_testing import hardware_look
from llmgw_testing.agent_harness import WITHIN, AgentHarness
from llmgw_testing.ibsim_fabric import HOST_GUID, fat_tree, host_guid, simulated, spine_guid
from llmgw_testing.quiet_watch import QuietWatch
from llmgw_testing.sysfs_trees import SysfsTree
from llmgw_testing.wait import eventually


def watch_of(found: Hardware) -> type[HardwareWatch]:
    """A watch that always finds this hardware."""

    class Watch(QuietWatch):
        async def look(self) -> Hardware:
            self._found = found
            self._tell()
            return found

    return Watch


def test_a_node_tells_its_ports_and_maps_their_subnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = SysfsTree(tmp_path / "sys")
    # The only adapter that the simulated library knows on this host.
    tree.hca("ibsim0", "pci0000:15/0000:15:01.0/0000:1a:00.0", guid=HOST_GUID + 1)
    found = hardware_look.look(tree.root, gpus=False)

    async def body() -> None:
        agent = AgentHarness(tmp_path)
        agent.watch = watch_of(found)
        async with agent:

            async def mapped() -> FabricMapRecord | None:
                items = (await agent.store.range(keyspace.FABRIC)).items
                return FabricMapRecord.decode(items[0].value) if items else None

            record = await eventually(mapped, within=WITHIN, what="a map")
            assert record is not None
            assert (record.subnet, record.mapper) == (spine_guid(0), agent.node)
            told = await agent.store.get(keyspace.fabric_ports(agent.node))
            assert told is not None
            ((hca, port, guid),) = FabricPortsRecord.decode(told.value).ports
            assert (hca, port) == ("ibsim0", 1)
            (host,) = [node for node in record.nodes if node.guid == host_guid(0)]
            assert host.port_guids == {1: guid}
            assert told.lease != 0

    with simulated(tmp_path / "f", fat_tree(4, 2, 1)) as fabric:
        for name, value in fabric.env.items():
            monkeypatch.setenv(name, value)
        asyncio.run(body())
