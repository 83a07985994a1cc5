"""The hardware of a running agent, and its part in mapping fabrics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from llmgw_agent.hardware.fabric import watch as fabric_watch
from llmgw_agent.hardware.fabric.elect import FabricPort
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_agent.hardware.fabric.watch import FabricWatch
from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.health_store import HealthStore
from llmgw_agent.hardware.metrics import HardwareMetrics
from llmgw_agent.hardware.power import PowerCapRangeError
from llmgw_agent.hardware.telemetry import Settings
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_base.clock import SystemClock
from llmgw_proto.records.fabric import FabricMapRecord, FabricNode
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.ibsim_fabric import fat_tree, simulated, spine_guid
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree
from llmgw_testing.wait import eventually

PATIENCE = 60.0


class Published(list[Hardware]):
    """What has been published, with waiting for the last to be as wished."""

    async def until(self, true: Callable[[Hardware], bool]) -> Hardware:
        await eventually(lambda: bool(self) and true(self[-1]), within=PATIENCE, what="a report as wished")
        return self[-1]


@asynccontextmanager
async def running(tree: Path, state: Path) -> AsyncIterator[tuple[HardwareWatch, Published, CollectorRegistry]]:
    published, registry = Published(), CollectorRegistry()
    watch = HardwareWatch(
        published.append,
        settings=Settings(every=0.05, stall=30, sysfs_root=tree),
        metrics=HardwareMetrics(registry),
        store=HealthStore(state, "boot"),
        deadline=PATIENCE,
        owned=lambda pid: pid == 4242,
    )
    task = asyncio.create_task(watch.run())
    try:
        yield watch, published, registry
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def quarantined(hardware: Hardware) -> list[str]:
    return [gpu.uuid for gpu in hardware.gpu_facts() if gpu.quarantine]


def test_what_changes_is_published_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        tree = SysfsTree(tmp_path / "sys")
        tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0")
        async with running(tree.root, tmp_path / "health.json") as (watch, published, registry):
            first = await published.until(lambda found: len(found.gpu_facts()) == 8)
            assert quarantined(first) == []
            metrics = "llmgw_gpu_temperature_celsius{"
            await eventually(lambda: metrics in generate_latest(registry).decode(), within=PATIENCE, what="metrics")
            # Temperatures go up and down; that is no news for etcd.
            nvml.add("gpu0.temp = 50", "gpu0.util = 90,10")
            warm = f'temperature_celsius{{class="H100-80GB",gpu="{machine.uuid(0)}",pci="0000:1b:00.0"}} 50.0'
            await eventually(lambda: warm in generate_latest(registry).decode(), within=PATIENCE, what="the new temperature")
            assert len(published) == 1

            nvml.add("gpu2.xid = 1:79")
            await published.until(lambda found: quarantined(found) == [machine.uuid(2)])
            tree.write("class/infiniband/mlx5_0/ports/1", state="1: DOWN", phys_state="2: Polling")
            down = await published.until(lambda found: "NCCL_IB_HCA" not in found.nccl_env())
            assert {problem.code for problem in down.problems} == {"xid", "ib-port-down"}

            with pytest.raises(PowerCapRangeError):
                await watch.set_power(machine.uuid(0), 5000)
            assert await watch.set_power(machine.uuid(0), 300) == 300

        # A restarted agent does not forget what no sample shows.
        async with running(tree.root, tmp_path / "health.json") as (watch, published, _):
            await published.until(lambda found: quarantined(found) == [machine.uuid(2)])
            watch.telemetry.lift(machine.uuid(2))
            await published.until(lambda found: quarantined(found) == [])

    asyncio.run(scenario())


def test_lost_gpu_leads_to_a_new_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        SysfsTree(tmp_path / "sys")
        async with running(tmp_path / "sys", tmp_path / "health.json") as (_, published, _):
            await published.until(lambda found: bool(found.nvlink.islands))
            nvml.add("gpu6.lost = 1")

            found = await published.until(lambda found: [len(island.gpus) for island in found.nvlink.islands] == [7])

            assert quarantined(found) == [machine.uuid(6)]
            assert len(found.gpu_facts()) == 8

    asyncio.run(scenario())


def test_processes_of_others_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.l40s(2))
        SysfsTree(tmp_path / "sys")
        async with running(tmp_path / "sys", tmp_path / "health.json") as (_, published, _):
            await published.until(lambda found: len(found.gpu_facts()) == 2)
            nvml.add("gpu0.proc0 = 4242,1000", f"gpu1.proc0 = {os.getpid()},5368709120")
            found = await published.until(lambda found: bool(found.problems))
            assert [(problem.code, problem.subject) for problem in found.problems] == [("foreign-process", machine.uuid(1))]
            assert f"(pid {os.getpid()}, 5 GiB)" in found.problems[0].text

    asyncio.run(scenario())


# --- fabrics ---


class Store(dict[str, FabricMapRecord]):
    async def write(self, record: FabricMapRecord) -> None:
        self[record.subnet] = record

    async def forget(self, subnet: str) -> None:
        del self[subnet]


def fabrics(store: Store, ports: list[FabricPort], env: dict[str, str], node: str = "n1") -> FabricWatch:
    return FabricWatch(
        node, lambda: ports, lambda: store, store.write, store.forget, SystemClock(), lambda task: Tools(env=env)
    )


def test_fabric_is_mapped_and_maps_out_of_use_are_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store()
        old = FabricNode(guid="h", kind="host", port_guids={1: "gone"})
        store["dead"] = FabricMapRecord(subnet="dead", mapper="n0", mapped_at=1, nodes=[old])
        ports = [FabricPort("n1", "mlx5_0", 1, "0c42a10300000001"), FabricPort("n2", "mlx5_0", 1, "0c42a10300000101")]
        with simulated(tmp_path / "f", fat_tree(4, 2, 1)) as fabric:
            other = fabrics(store, ports, fabric.env, "n2")
            assert await other.once() > 60
            assert list(store) == ["dead"]

            watch = fabrics(store, ports, fabric.env)
            assert await watch.once() < 60
            assert list(store) == [spine_guid(0)]
            first = store[spine_guid(0)]
            assert await watch.once() > 60
            assert store[spine_guid(0)].mapped_at > first.mapped_at
            assert watch.troubles == []

    asyncio.run(scenario())


def test_node_without_infiniband_has_nothing_to_do() -> None:
    store = Store()
    watch = fabrics(store, [FabricPort("n2", "mlx5_0", 1, "p")], {})
    assert asyncio.run(watch.once()) > 60
    assert (store, watch.troubles) == ({}, [])


def test_missing_tools_are_a_trouble_only_with_infiniband(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_watch, "missing_tools", lambda: ["iblinkinfo"])
    watch = fabrics(Store(), [FabricPort("n1", "mlx5_0", 1, "p")], {})
    asyncio.run(watch.once())
    assert "install infiniband-diags" in watch.troubles[0]
