"""Adapters, ports and interfaces of whole hosts, and what NCCL is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from llmgw_agent.hardware.detect import Hardware, detect
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import E810_ID, SysfsTree

NODES = ("0-55,112-167", "56-111,168-223")


def look(tree: SysfsTree, gpus: bool = False) -> Hardware:
    return hardware_look.look(tree.root, gpus=gpus)


def codes(hardware: Hardware) -> list[tuple[str, str]]:
    return [(problem.code, problem.subject) for problem in hardware.problems]


def hgx(root: Path, **ports: Mapping[str, object]) -> SysfsTree:
    """Eight GPUs, each with an adapter on its own switch; NIC3 and NIC4 are storage cards elsewhere on node 0."""
    tree = SysfsTree(root)
    tree.numa(*NODES)
    names = [f"mlx5_{index}" for index in (0, 1, 2, 5, 6, 7, 8, 9)]
    for index, pci in enumerate(machine.BOX):
        node = index // 4
        base = f"pci0000:e{index}/0000:e{index}:01.0/0000:0{index}:00.0"
        address = pci[4:].lower()
        tree.gpu(f"{base}/0000:a{index}:00.0/{address}", node, NODES[node])
        tree.hca(
            names[index], f"{base}/0000:a{index}:01.0/0000:b{index}:00.0", node, cpus=NODES[node], port=ports.get(names[index])
        )
    for name, bus in (("mlx5_3", "f8"), ("mlx5_4", "f9")):
        tree.hca(
            name,
            f"pci0000:f0/0000:f0:01.0/0000:{bus}:00.0",
            0,
            model="MT4123",
            port={"rate": "200 Gb/sec (4X HDR)", **ports.get(name, {})},
        )
    place = tree.device("pci0000:f1/0000:f1:01.0/0000:fa:00.0", 0x0200, 0x8086, E810_ID, 0)
    tree.netdev("ens1f0", place, speed=25000)
    return tree


@pytest.fixture(autouse=True)
def h100(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    return FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())


def test_rails_are_the_adapters_next_to_gpus(tmp_path: Path) -> None:
    hardware = look(hgx(tmp_path / "sys"), gpus=True)

    nearest = [hardware.rails.nearest[machine.uuid(index)] for index in range(8)]
    assert nearest == [[f"mlx5_{index}"] for index in (0, 1, 2, 5, 6, 7, 8, 9)]
    assert hardware.rails.distance[machine.uuid(0), "mlx5_0"] == "PIX"
    assert hardware.rails.distance[machine.uuid(0), "mlx5_1"] == "NODE"
    assert hardware.rails.distance[machine.uuid(0), "mlx5_9"] == "SYS"
    assert hardware.nccl_env() == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1",
        "NCCL_SOCKET_IFNAME": "=ens1f0",
        "GLOO_SOCKET_IFNAME": "ens1f0",
    }
    assert [gpu.numa for gpu in hardware.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert hardware.problems == []


def test_port_without_link_is_no_rail_and_names_its_gpu(tmp_path: Path) -> None:
    down = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)", "lid": "0x364", "sm_lid": "0x14e"}

    hardware = look(hgx(tmp_path / "sys", mlx5_2=down), gpus=True)

    assert codes(hardware) == [("ib-port-down", "mlx5_2:1")]
    assert machine.uuid(2) in hardware.problems[0].text
    assert "mlx5_2" not in hardware.nccl_env()["NCCL_IB_HCA"]
    assert hardware.rails.nearest[machine.uuid(2)] == ["mlx5_2"]
    port = next(port for port in hardware.topology()["rdma_ports"] if port["hca"] == "mlx5_2")
    # Old values of a port that is down are not repeated.
    assert (port["state"], port["rate"], port["lid"], port["sm_lid"]) == ("DOWN", None, None, None)


def test_slow_port_is_compared_with_its_siblings(tmp_path: Path) -> None:
    hardware = look(hgx(tmp_path / "sys", mlx5_7={"rate": "200 Gb/sec (4X HDR)"}), gpus=True)

    assert codes(hardware) == [("ib-port-slow", "mlx5_7:1")]
    assert "mlx5_7:1" in hardware.nccl_env()["NCCL_IB_HCA"]


def test_port_that_waits_for_a_subnet_manager(tmp_path: Path) -> None:
    hardware = look(hgx(tmp_path / "sys", mlx5_0={"state": "2: INIT"}), gpus=True)

    assert codes(hardware) == [("ib-port-not-active", "mlx5_0:1")]
    assert "subnet manager" in hardware.problems[0].text


def test_dropped_lanes_are_reported(tmp_path: Path) -> None:
    tree = hgx(tmp_path / "sys")
    for path in (tree.root / "bus/pci/devices").iterdir():
        if path.name == "0000:52:00.0":
            (path / "current_link_width").write_text("8\n")

    assert codes(look(tree, gpus=True)) == [("pcie-width", machine.uuid(2))]


def test_card_in_a_short_slot_is_not_degraded(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0", current_link_width=8)
    tree.write("devices/pci0000:00/0000:00:01.0", max_link_width=8)

    assert [code for code, _ in codes(look(tree)) if code != "no-nvml-library"] == []


def test_second_port_without_cable_is_only_a_note(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0", guid=0xA0, image=0xA0)
    down: dict[str, object] = {"state": "1: DOWN", "phys_state": "2: Polling"}
    tree.hca("mlx5_1", "pci0000:15/0000:15:01.0/0000:16:00.1", guid=0xA1, image=0xA0, port=down)

    hardware = look(tree)

    assert hardware.problems == []
    assert any(note.startswith("mlx5_1:1: DOWN/Polling") for note in hardware.notes)
    assert [port.name for port in hardware.rails.rails] == ["mlx5_0:1"]


def test_virtual_functions_are_left_to_guests(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    physical = tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0")
    for index in range(2):
        place = tree.hca(f"mlx5_{index + 1}", f"pci0000:15/0000:15:01.0/0000:16:00.{index + 1}")
        tree.virtual_function(place, physical)
    tree.write(physical, sriov_numvfs=2)

    hardware = look(tree)

    assert hardware.nccl_env()["NCCL_IB_HCA"] == "=mlx5_0:1"
    cards = {card["name"]: card for card in hardware.topology()["hcas"]}
    assert cards["mlx5_0"]["virtual_functions"] == 2
    assert cards["mlx5_2"]["virtual_function"] is True
    assert cards["mlx5_2"]["physical_function"] == "0000:16:00.0"


def test_roce_bond(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    gids: dict[str, object] = {
        "gids__1": "0000:0000:0000:0000:0000:ffff:0a09:0002",
        "gid_attrs__types__1": "RoCE v2",
        "gid_attrs__ndevs__0": "bond0",
        "gid_attrs__ndevs__1": "bond0",
    }
    place = tree.hca("mlx5_bond_0", "pci0000:15/0000:15:01.0/0000:16:00.0", layer="Ethernet", port=gids)
    other = tree.device("pci0000:15/0000:15:01.0/0000:16:00.1", 0x0200, 0x15B3, 0x1021)
    tree.netdev("ens1f0np0", place, speed=200000)
    tree.netdev("ens1f1np1", other, operstate="down")
    tree.bond("bond0", "ens1f0np0", "ens1f1np1")

    hardware = look(tree)

    (port,) = hardware.topology()["rdma_ports"]
    assert (port["netdev"], port["bond"], port["link_layer"], port["lid"]) == ("bond0", "bond0", "Ethernet", None)
    assert port["gids"][1] == {
        "index": 1,
        "gid": "0000:0000:0000:0000:0000:ffff:0a09:0002",
        "kind": "RoCE v2",
        "netdev": "bond0",
    }
    assert codes(hardware) == [("bond-degraded", "bond0")]
    assert "ens1f1np1" in hardware.problems[0].text
    assert hardware.interfaces.fabric == ["bond0"]
    # The only network there is carries both.
    assert hardware.nccl_env()["GLOO_SOCKET_IFNAME"] == "bond0"


def test_roce_cards_beside_a_management_card(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    for index in range(2):
        place = tree.hca(f"mlx5_{index}", f"pci0000:15/0000:15:0{index + 1}.0/0000:1{index + 6}:00.0", layer="Ethernet")
        tree.netdev(f"eth{index + 2}", place, speed=400000)
    place = tree.hca(
        "mlx5_2", "pci0000:80/0000:80:01.0/0000:81:00.0", layer="Ethernet", model="MT4117", port={"rate": "25 Gb/sec (1X EDR)"}
    )
    tree.netdev("eno1", place, speed=25000)

    hardware = look(tree)

    # A fast card without a GPU in sight is a rail, a slow one is not.
    assert hardware.nccl_env()["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert hardware.interfaces.management == "eno1"
    assert hardware.interfaces.fabric == ["eth2", "eth3"]


def test_two_ports_of_one_adapter_have_their_own_interfaces(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    place = tree.hca("mlx4_0", "pci0000:15/0000:15:01.0/0000:16:00.0", ports=2, layer="Ethernet", model="MT4099")
    tree.netdev("ens2", place, dev_port=0)
    tree.netdev("ens2d1", place, dev_port=1)

    ports = look(tree).topology()["rdma_ports"]

    assert [(port["port"], port["netdev"]) for port in ports] == [(1, "ens2"), (2, "ens2d1")]


def test_ipoib_is_found_by_its_address(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    place = tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0", guid=0x0C42A10300000500)
    address = "00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:00:05:00"
    tree.netdev("ibp22s0", place, type=32, address=address, dev_port=3, operstate="down")

    hardware = look(tree)

    # IPoIB down beside an active port is normal.
    assert hardware.problems == []
    assert hardware.topology()["rdma_ports"][0]["netdev"] == "ibp22s0"


def test_software_rdma_is_no_rail(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    tree.netdev("eth0")
    tree.software_rdma("rxe0", "eth0")

    hardware = look(tree)

    assert "NCCL_IB_HCA" not in hardware.nccl_env()
    (port,) = hardware.topology()["rdma_ports"]
    assert (port["software"], port["netdev"], port["rail"]) == (True, "eth0", False)


def test_ten_adapters_come_in_natural_order(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    for index in range(11):
        tree.hca(f"mlx5_{index}", f"pci0000:15/0000:15:01.0/0000:{0x20 + index:02x}:00.0")

    assert look(tree).nccl_env()["NCCL_IB_HCA"].endswith("mlx5_9:1,mlx5_10:1")


def test_route_to_a_peer_decides_the_socket_interface() -> None:
    hardware = asyncio.run(detect(deadline=hardware_look.PATIENCE, peers=["127.0.0.1", "not-an-address"]))

    assert hardware.host is not None
    assert hardware.host.routes["127.0.0.1"] == ["lo", "127.0.0.1"]
    assert hardware.nccl_env("127.0.0.1")["GLOO_SOCKET_IFNAME"] == "lo"
    assert hardware.nccl_env("127.0.0.1")["NCCL_SOCKET_IFNAME"] == "=lo"
