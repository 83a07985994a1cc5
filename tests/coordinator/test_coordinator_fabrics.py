"""Maps of fabrics: what agents write is what the admin API shows."""

from __future__ import annotations

import asyncio

from llmgw_base.clock import SystemClock
from llmgw_proto import keyspace
from llmgw_proto.records import FabricMapRecord, FabricNode
from llmgw_testing.coordinators import Cluster, admin_of


def fabric(subnet: str) -> FabricMapRecord:
    nodes = [FabricNode(guid=subnet, kind="switch", name="leaf"), FabricNode(guid="1", kind="host", port_guids={1: "aa"})]
    return FabricMapRecord(subnet=subnet, mapper="n1", mapped_at=1.0, nodes=nodes, links=[(0, 1, 1, 1, "4xNDR")])


def test_maps_are_listed_shown_and_gone_with_their_key() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as coordinator, admin_of(coordinator, SystemClock()) as admin:
            assert (await admin.ask("GET", "/admin/v1/fabrics")).body == {"fabrics": []}
            for subnet in ("b2", "a1"):
                await cluster.hand.put(keyspace.fabric(subnet), fabric(subnet).encode())
            await cluster.live()
            answer = await admin.ask("GET", "/admin/v1/fabrics")
            assert [each["subnet"] for each in answer.body["fabrics"]] == ["a1", "b2"]
            one = (await admin.ask("GET", "/admin/v1/fabrics/a1")).body
            assert one["links"] == [[0, 1, 1, 1, "4xNDR"]]
            assert one["nodes"][1]["port_guids"] == {"1": "aa"}
            await cluster.hand.delete(keyspace.fabric("a1"))
            await cluster.live()
            gone = await admin.ask("GET", "/admin/v1/fabrics/a1")
            assert (gone.status, gone.error) == (404, "fabric_not_found")

    asyncio.run(test())


def test_a_map_that_cannot_be_read_is_told_and_hides_no_other() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as coordinator, admin_of(coordinator, SystemClock()) as admin:
            await cluster.write_raw(keyspace.fabric("bad"), b"{")
            await cluster.hand.put(keyspace.fabric("a1"), fabric("a1").encode())
            await cluster.live()
            answer = await admin.ask("GET", "/admin/v1/fabrics")
            assert [each["subnet"] for each in answer.body["fabrics"]] == ["a1"]
            problems = (await admin.ask("GET", "/admin/v1/status")).body["problems"]
            assert any(keyspace.fabric("bad") in each for each in problems)

    asyncio.run(test())
