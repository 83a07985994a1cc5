"""Whole maps with the real tools, on simulated fat trees that the real opensm manages."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from llmgw_agent.hardware.fabric.changes import carry_over
from llmgw_agent.hardware.fabric.elect import FabricPort
from llmgw_agent.hardware.fabric.errors import ToolFailedError, ToolHungError
from llmgw_agent.hardware.fabric.mapper import make_map
from llmgw_agent.hardware.fabric.service import turn
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_base.clock import SystemClock
from llmgw_proto.records.fabric import FabricMapRecord
from llmgw_testing.ibsim_fabric import Fabric, count_links, fat_tree, host_guid, leaf_guid, simulated, spine_guid


@pytest.mark.parametrize(("hosts", "per_leaf", "spines", "lines"), [(8, 2, 2, 2), (32, 8, 4, 2), (128, 16, 8, 2)])
def test_fat_tree(hosts: int, per_leaf: int, spines: int, lines: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        with simulated(tmp_path / "f", fat_tree(hosts, per_leaf, spines, lines)) as fabric:
            record = await make_map("n1", Tools(env=fabric.env))

        kinds = [node.kind for node in record.nodes]
        assert (kinds.count("host"), kinds.count("switch")) == (hosts, spines - (-hosts // per_leaf))
        assert len(record.links) == count_links(hosts, per_leaf, spines, lines)
        assert record.subnet == spine_guid(0)
        assert record.sm_guid == f"{int(host_guid(0), 16) + 1:016x}"
        assert (record.problems, record.errors, record.partial) == ([], [], False)
        assert record.seconds < 5
        assert len(record.encode()) < 250 * len(record.links)
        assert FabricMapRecord.decode(record.encode()) == record

    asyncio.run(scenario())


def test_cut_links_raised_counters_and_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        with simulated(tmp_path / "f", fat_tree(8, 2, 2, 2)) as fabric:
            tools = Tools(env=fabric.env)
            whole = await make_map("n1", tools)

            fabric.say(f'Unlink "S-{leaf_guid(1)}"[22]')
            fabric.say(f'PerformanceSet "S-{leaf_guid(0)}"[1] PortCounters.SymbolErrorCounter=250')
            fabric.say(f'PerformanceSet "S-{leaf_guid(0)}"[1] PortCounters.LinkDownedCounter=7')
            second = await until(fabric, whole, lambda record: len(record.links) == 23 and bool(record.errors))

            assert [change.kind for change in second.changes] == ["link-down", "flapping", "errors"]
            assert "spine0 port 4 - leaf1 port 22" in second.changes[0].text
            assert [(each.guid, each.port, each.counters) for each in second.errors] == [
                (leaf_guid(0), 1, {"SymbolErrorCounter": 250, "LinkDownedCounter": 7})
            ]
            assert len(second.missing) == 1

            fabric.say(f'ReLink "S-{leaf_guid(1)}"[22]')
            third = await until(fabric, second, lambda record: len(record.links) == 24)
            assert third.changes[-1].kind == "link-up"
            assert third.missing == []

    asyncio.run(scenario())


def test_host_that_is_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        with simulated(tmp_path / "f", fat_tree(8, 2, 2, 2)) as fabric:
            whole = await make_map("n1", Tools(env=fabric.env))
            fabric.say(f'Unlink "H-{host_guid(5)}"[1]')

            second = await until(fabric, whole, lambda record: len(record.nodes) == 13)

            assert [(change.kind, change.where) for change in second.changes] == [("node-gone", host_guid(5))]

    asyncio.run(scenario())


def test_switch_that_does_not_answer_makes_a_partial_map(tmp_path: Path) -> None:
    async def scenario() -> None:
        with simulated(tmp_path / "f", fat_tree(8, 2, 2, 2)) as fabric:
            whole = await make_map("n1", Tools(env=fabric.env))
            fabric.say(f'Error "S-{leaf_guid(3)}" 100')

            second = await until(fabric, whole, lambda record: record.partial)

            # The tool itself answers 0 here.
            assert len(second.nodes) < len(whole.nodes)
            assert any("did not answer" in problem for problem in second.problems)
            assert second.changes == []

    asyncio.run(scenario())


async def until(fabric: Fabric, before: FabricMapRecord, true: object) -> FabricMapRecord:
    """Maps again until the simulator has done what it was told: its console does not say when."""
    assert callable(true)
    async with asyncio.timeout(60):
        while True:
            record = carry_over(before, await make_map("n1", Tools(env=fabric.env)))
            if true(record):
                return record
            await asyncio.sleep(0.05)


def test_fabric_without_subnet_manager(tmp_path: Path) -> None:
    async def scenario() -> None:
        with simulated(tmp_path / "f", fat_tree(4, 2, 1), manager=False) as fabric:
            record = await make_map("n1", Tools(env=fabric.env))

        assert len(record.nodes) == 7
        assert any("no subnet manager answers" in problem for problem in record.problems)
        assert any("no subnet manager has set it up" in problem for problem in record.problems)
        assert record.sm_lid is None

    asyncio.run(scenario())


def test_slow_link_is_compared_with_its_kind(tmp_path: Path) -> None:
    slow = fat_tree(8, 2, 2, 2).replace('"gpu003 mlx5_0" lid 0 4xHDR', '"gpu003 mlx5_0" lid 0 1xHDR')
    slow = slow.replace('[2]\t\t# lid 0 lmc 0 "leaf1" lid 0 4xHDR', '[2]\t\t# lid 0 lmc 0 "leaf1" lid 0 1xHDR')

    async def scenario() -> None:
        with simulated(tmp_path / "f", slow) as fabric:
            record = await make_map("n1", Tools(env=fabric.env))

        assert [problem for problem in record.problems if "runs at 1xHDR" in problem] == record.problems
        assert len(record.problems) == 1
        assert "gpu003" in record.problems[0]

    asyncio.run(scenario())


def test_turns_of_a_cluster_on_two_fabrics(tmp_path: Path) -> None:
    """One node, two fabrics: the first turn maps one, the second both; another node has nothing to do."""
    moved = fat_tree(4, 2, 1).replace("c42a103", "c42a1ff").replace("b8cef603", "b8cef6ff")

    async def scenario() -> None:
        store: dict[str, FabricMapRecord] = {}

        async def write(record: FabricMapRecord) -> None:
            store[record.subnet] = record

        with simulated(tmp_path / "a", fat_tree(8, 4, 1)) as one, simulated(tmp_path / "b", moved, seen_from=None) as two:
            fabrics = {"mlx5_0": one, "mlx5_1": two}
            ports = [FabricPort("n1", "mlx5_0", 1, "0c42a10300000001"), FabricPort("n1", "mlx5_1", 1, "0c42a1ff00000001")]
            sizes = []
            for _ in range(2):
                tools = lambda task: Tools(env=fabrics[task.hca].env)  # noqa: E731
                assert await turn("n1", ports, dict(store), write, SystemClock(), tools) == []
                sizes.append(len(store))
            assert await turn("n2", ports, dict(store), write, SystemClock()) == []
        assert sizes == [1, 2]
        assert {subnet: len(record.nodes) for subnet, record in store.items()} == {spine_guid(0): 11, "b8cef6ff00000010": 7}

    asyncio.run(scenario())


def test_tool_that_hangs_is_stopped(tmp_path: Path) -> None:
    """Without its simulator the client library waits for ever."""
    script = tmp_path / "ibnetdiscover"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)

    started = time.monotonic()
    with pytest.raises(ToolHungError, match="did not end within"):
        asyncio.run(make_map("n1", Tools(env={"PATH": f"{tmp_path}:/usr/bin:/bin"}), deadline=1.0))
    assert time.monotonic() - started < 30


def test_no_infiniband_is_told_in_the_tools_words() -> None:
    with pytest.raises(ToolFailedError, match="ibnetdiscover ended with exit code"):
        asyncio.run(make_map("n1", Tools(), deadline=30))
