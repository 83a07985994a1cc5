"""Hosts and faults reported by others, each rebuilt and judged. What must follow is written beside each capture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from llmgw_agent.hardware.conditions import Findings, judge
from llmgw_agent.hardware.detect import Hardware
from llmgw_agent.hardware.interfaces import nccl_env
from llmgw_agent.hardware.nvlink_fabric import mask_conditions
from llmgw_agent.hardware.raw import NvmlFacts, System
from llmgw_agent.hardware.rdma import Port
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import CX6_VF_ID, SysfsTree

CAPTURES = {
    each["id"]: each for each in json.loads((Path(__file__).parents[2] / "fixtures/hardware/captures.json").read_text())
}

Scene = Callable[["Stage"], None]
SCENES: dict[str, Scene] = {}


class Stage:
    """A host being built: GPUs in ``profile``, everything else in ``tree``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._folder = monkeypatch, folder
        self.tree = SysfsTree(folder / "sys")

    def look(self, profile: str) -> Hardware:
        FakeNvml(self._monkeypatch, self._folder, profile)
        return hardware_look.look(self.tree.root)

    def slot(self, domain: int, name: str | None, address: str | None, node: int, cpus: str = "") -> None:
        """A PCIe switch with a GPU, an adapter, or both."""
        base = f"pci{domain:04x}:00/{domain:04x}:00:01.0/{domain:04x}:f0:00.0"
        if address is not None:
            self.tree.gpu(f"{base}/{domain:04x}:f1:00.0/{address[4:].lower()}", node, cpus)
        if name is not None:
            bus = 0x80 + len(list((self.tree.root / "class/infiniband").iterdir()))
            self.tree.hca(name, f"{base}/{domain:04x}:f1:{bus - 0x80 + 1:02x}.0/{domain:04x}:{bus:02x}:00.0", node, cpus=cpus)


def scene(name: str) -> Callable[[Scene], Scene]:
    def add(make: Scene) -> Scene:
        SCENES[name] = make
        return make

    return add


def codes(hardware: Hardware) -> set[str]:
    return {problem.code for problem in hardware.problems}


@pytest.mark.parametrize("name", CAPTURES)
def test_capture(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert name in SCENES, f"no scene for the capture {CAPTURES[name]['title']!r}: {CAPTURES[name]['detector_must_conclude']}"
    SCENES[name](Stage(monkeypatch, tmp_path))


@scene("dgx-a100")
def _(stage: Stage) -> None:
    nodes = (3, 3, 1, 1, 7, 7, 5, 5)
    stage.tree.numa(*(f"{16 * node}-{16 * node + 15}" for node in range(8)))
    for pair in range(4):
        domain = 0x10 + pair
        for at in (0, 1):
            gpu = 2 * pair + at
            base = f"pci{domain:04x}:00/{domain:04x}:00:01.0/{domain:04x}:f0:00.0"
            address = machine.BOX[gpu][4:].lower()
            stage.tree.gpu(f"{base}/{domain:04x}:f1:{at:02x}.0/{domain:04x}:f{2 + at}:00.0/{address}", nodes[gpu])
            hca = (0, 1, 2, 3, 6, 7, 8, 9)[gpu]
            place = f"{base}/{domain:04x}:e1:{at:02x}.0/{domain:04x}:e{2 + at}:00.0/{domain:04x}:{0x80 + hca:02x}:00.0"
            stage.tree.hca(f"mlx5_{hca}", place, nodes[gpu])
    for hca, node in ((4, 0), (5, 2), (10, 4), (11, 6)):
        stage.tree.hca(f"mlx5_{hca}", f"pci00{hca + 0x20:02x}:00/00{hca + 0x20:02x}:00:01.0/00{hca + 0x20:02x}:01:00.0", node)

    hardware = stage.look(machine.dgx_a100())

    assert [island.gpus for island in hardware.nvlink.islands] == [tuple(range(8))]
    assert [gpu.numa for gpu in hardware.gpus] == list(nodes)
    nearest = [hardware.rails.nearest[machine.uuid(gpu)] for gpu in range(8)]
    assert (
        nearest
        == [["mlx5_0", "mlx5_1"]] * 2 + [["mlx5_2", "mlx5_3"]] * 2 + [["mlx5_6", "mlx5_7"]] * 2 + [["mlx5_8", "mlx5_9"]] * 2
    )
    assert hardware.rails.distance[machine.uuid(0), "mlx5_0"] == "PXB"
    assert hardware.rails.distance[machine.uuid(0), "mlx5_4"] == "SYS"
    # The four that are far from every GPU are for storage.
    assert [port.hca for port in hardware.rails.rails] == [f"mlx5_{hca}" for hca in (0, 1, 2, 3, 6, 7, 8, 9)]


@scene("hgx-h100-8rail")
def _(stage: Stage) -> None:
    halves = ("0-55,112-167", "56-111,168-223")
    stage.tree.numa(*halves)
    for gpu, hca in enumerate((0, 1, 2, 5, 6, 7, 8, 9)):
        stage.slot(gpu + 1, f"mlx5_{hca}", machine.BOX[gpu], gpu // 4, halves[gpu // 4])
    stage.slot(0x21, "mlx5_3", None, 0)
    stage.slot(0x22, "mlx5_4", None, 0)

    hardware = stage.look(machine.dgx_h100())

    assert hardware.nccl_env()["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{hca}:1" for hca in (0, 1, 2, 5, 6, 7, 8, 9))
    assert hardware.rails.nearest[machine.uuid(3)] == ["mlx5_5"]
    assert [gpu.cpus for gpu in hardware.gpus] == [halves[0]] * 4 + [halves[1]] * 4


@scene("hgx-h100-4numa")
def _(stage: Stage) -> None:
    cpus = ("0-23,96-119", "24-47,120-143", "48-71,144-167", "72-95,168-191")
    stage.tree.numa(*cpus)
    nodes, hcas = (0, 0, 0, 1, 2, 2, 3, 3), (0, 1, 2, 4, 5, 6, 7, 8)
    for gpu in range(8):
        stage.slot(gpu + 1, f"mlx5_{hcas[gpu]}", machine.BOX[gpu], nodes[gpu], cpus[nodes[gpu]])

    hardware = stage.look(machine.dgx_h100())

    assert [gpu.numa for gpu in hardware.gpus] == list(nodes)
    assert [gpu.cpus for gpu in hardware.gpus] == [cpus[node] for node in nodes]
    assert hardware.rails.nearest[machine.uuid(5)] == ["mlx5_6"]


@scene("a100-16")
def _(stage: Stage) -> None:
    lines = []
    for gpu in range(16):
        address = f"00000000:{0x10 + gpu:02X}:00.0"
        lines += machine.card(gpu, machine.A100, address) + machine.links(gpu, 4, [(2, machine.NVSWITCH)] * 6)
        domain, address = gpu // 2 + 1, address[4:].lower()
        base = f"pci{domain:04x}:00/{domain:04x}:00:01.0/{domain:04x}:f0:00.0"
        stage.tree.gpu(f"{base}/{domain:04x}:f1:{gpu % 2:02x}.0/{address}", gpu // 8)
        if gpu % 2 == 0:
            stage.tree.hca(f"mlx5_{gpu // 2}", f"{base}/{domain:04x}:f1:08.0/{domain:04x}:80:00.0", gpu // 8)

    hardware = stage.look(machine.text(machine.system(16), lines, machine.peers()))

    (island,) = hardware.nvlink.islands
    assert island.groups == (tuple(range(16)),)
    assert hardware.between(0, 9) == "NV6"
    assert [hardware.rails.nearest[machine.uuid(gpu)] for gpu in range(4)] == [["mlx5_0"]] * 2 + [["mlx5_1"]] * 2


@scene("dgx1-v100")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.dgx1_v100())

    (island,) = hardware.nvlink.islands
    assert (island.gpus, island.all_to_all) == (tuple(range(8)), False)
    assert island.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    facts = CAPTURES["dgx1-v100"]["facts"]["links_gpu0"]
    addresses = {gpu.raw.index: (gpu.address or "")[5:7] for gpu in hardware.gpus}
    assert {addresses[other]: hardware.nvlink.joined[0, other] for other in (1, 2, 3, 4)} == facts


@scene("bridge-partial")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.rtx3090_pair(dead=[3]))

    assert hardware.between(0, 1) == "NV3"
    assert [problem.code for problem in hardware.problems] == ["nvlink-degraded"] * 2
    assert "reseat" in hardware.problems[0].text


@scene("l40s-4")
def _(stage: Stage) -> None:
    stage.tree.numa("0-31", "32-63")
    for gpu, bus in enumerate(("0e", "0f", "1f", "20")):
        stage.tree.gpu(f"pci00{gpu:02x}:00/00{gpu:02x}:00:01.0/0000:{bus}:00.0", gpu // 2)
    for hca in range(2):
        stage.tree.hca(f"mlx5_{hca}", f"pci0009:00/0009:00:01.0/0009:01:00.{hca}", 1)

    hardware = stage.look(machine.l40s(4))

    assert hardware.nvlink.islands == []
    assert hardware.pci_groups() == [[0, 1], [2, 3]]
    assert (hardware.between(0, 1), hardware.between(1, 2)) == ("NODE", "SYS")
    assert hardware.rails.distance[machine.uuid(3), "mlx5_0"] == "NODE"
    assert hardware.rails.distance[machine.uuid(0), "mlx5_0"] == "SYS"
    assert hardware.topology()["hca_links"][0][1] == "PIX"


@scene("gb200-tray")
def _(stage: Stage) -> None:
    # Two nodes of CPUs; the others are the GPUs' own memory and its slices.
    stage.tree.numa("0-71", "72-143", *[""] * 32)
    for hca in range(6):
        stage.tree.hca(f"mlx5_{hca}", f"pci00{hca + 2:02x}:00/00{hca + 2:02x}:00:00.0/00{hca + 2:02x}:01:00.0", hca // 3)

    hardware = stage.look(machine.gb200_tray())

    assert [gpu.raw.hbm_numa for gpu in hardware.gpus] == [2, 10, 18, 26]
    assert [gpu.numa for gpu in hardware.gpus] == [0, 0, 1, 1]
    assert [gpu.cpus for gpu in hardware.gpus] == ["0-71", "0-71", "72-143", "72-143"]
    # PCI paths tell nothing here; the socket does.
    assert hardware.rails.nearest[machine.uuid(0)] == ["mlx5_0", "mlx5_1", "mlx5_2"]
    assert hardware.rails.nearest[machine.uuid(3)] == ["mlx5_3", "mlx5_4", "mlx5_5"]
    assert hardware.nvlink.islands[0].domain is not None


@scene("gb200-fabric-ok")
def _(stage: Stage) -> None:
    # No summary in the older struct, no local fabric manager: healthy all the same.
    hardware = stage.look(machine.gb200_tray(clique=4026, summary=0))

    assert hardware.problems == []
    assert hardware.nvlink.islands[0].domain == "5d9a6b1c-0f2e-4a77-9c1d-3b5e7f901234.4026"


@scene("gb200-fabric-off")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.gb200_tray(state=0))

    (island,) = hardware.nvlink.islands
    assert (island.gpus, island.domain) == ((0, 1, 2, 3), None)
    assert codes(hardware) == {"fabric-not-registered"}
    assert not any(gpu.quarantine for gpu in hardware.gpus)


@scene("fabric-insufficient")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.gb200_tray(status=23))

    assert hardware.nvlink.islands == []
    assert codes(hardware) == {"fabric-failed"}
    assert "insufficient resources" in hardware.problems[0].text
    assert all(gpu.quarantine for gpu in hardware.gpus)


@scene("fabric-unhealthy")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.gb200_tray(summary=2, clique=2))

    # Attached: usable on its own; not healthy: no replica across hosts.
    assert codes(hardware) == {"fabric-unhealthy"}
    assert hardware.nvlink.islands[0].domain is None
    assert not any(gpu.quarantine for gpu in hardware.gpus)


@scene("nvl72-health-mask")
def _(stage: Stage) -> None:
    assert mask_conditions(int(CAPTURES["nvl72-health-mask"]["facts"]["health_mask"], 16)) == []
    assert stage.look(machine.gb200_tray(mask="0xaa")).problems == []


@scene("fm-802")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.dgx_h100(state=1))

    assert hardware.nvlink.islands == []
    assert [(problem.code, problem.subject) for problem in hardware.problems] == [("fabric-not-ready", "node")]
    assert all(facts.quarantine for facts in hardware.gpu_facts())
    for word in ("missing", "not running", "another version", "802"):
        assert word in hardware.problems[0].text


@scene("fm-not-needed")
def _(stage: Stage) -> None:
    # A fabric-capable card without NVLink: its fabric never starts, and nothing is wrong.
    alone = machine.text(machine.system(1), machine.card(0, machine.H100, machine.BOX[0]), ["gpu0.fabric.state = 1"])

    assert stage.look(alone).problems == []
    assert stage.look(machine.rtx3090_pair(dead=range(4))).problems == []


@scene("lib-mismatch")
def _(stage: Stage) -> None:
    stage.tree.write("module/nvidia", version="570.124.04")

    (problem,) = stage.look(machine.failing(18)).problems

    assert (problem.code, problem.subject) == ("driver-mismatch", "node")
    assert "engines that already run may go on" in problem.text
    assert "570.124.04" in problem.text


@scene("gpu-lost")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.lost(3))

    assert [facts.uuid for facts in hardware.gpu_facts()] == [machine.uuid(gpu) for gpu in range(8) if gpu != 3]
    assert codes(hardware) == {"gpu-lost"}


@scene("mig-uuid")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.h100_mig())

    facts = hardware.gpu_facts()
    assert [each.uuid[:4] for each in facts] == ["MIG-", "MIG-"]
    assert [each.memory_bytes for each in facts] == [42_949_672_960, 21_474_836_480]
    assert hardware.nvlink.islands == []


@scene("nvl-max-links")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.gb200_tray())

    assert len(hardware.nvml.links[0].links) == CAPTURES["nvl-max-links"]["facts"]["gb200_links"]
    # A driver that does not tell the count: stop where it says that there are no more.
    older = stage.look(machine.gb200_tray() + "".join(f"gpu{gpu}.fi.91 = !3\n" for gpu in range(4)))
    assert len(older.nvml.links[0].links) == 18
    assert older.problems == []


@scene("vm-hidden-switch")
def _(stage: Stage) -> None:
    hidden = stage.look(machine.dgx_h100(remote=machine.HIDDEN))
    untold = stage.look(machine.dgx_h100(remote=machine.HIDDEN).replace(".rtype = 2", ".rtype = 255"))
    waiting = stage.look(machine.dgx_h100(remote=machine.HIDDEN, state=2))

    assert hidden.nvlink.islands[0].switched
    assert untold.nvlink.islands[0].gpus == tuple(range(8))
    assert waiting.nvlink.islands == []


@scene("numa-minus1")
def _(stage: Stage) -> None:
    stage.tree.numa("0-31", "32-63")
    for gpu, bus in enumerate(("0e", "0f")):
        stage.tree.gpu(f"pci00{gpu:02x}:00/00{gpu:02x}:00:01.0/0000:{bus}:00.0", -1)

    hardware = stage.look(machine.l40s(2) + "gpu0.cpuaffinity = 0-31\n")

    assert [gpu.numa for gpu in hardware.gpus] == [0, None]
    assert hardware.between(0, 1) == "UNKNOWN"


@scene("siw-breaks-topo")
def _(stage: Stage) -> None:
    stage.tree.netdev("eth0")
    stage.tree.software_rdma("siw_eth0", "eth0")
    stage.slot(1, "mlx5_0", machine.BOX[0], 0)

    hardware = stage.look(machine.text(machine.system(1), machine.card(0, machine.H100, machine.BOX[0])))

    assert hardware.nccl_env()["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert hardware.problems == []


@scene("nvml-unknown-cgroup")
def _(stage: Stage) -> None:
    findings = Findings()

    judge(NvmlFacts(system=System(error=999)), findings, module_version=None, container="podman", pci_gpus=8)

    assert findings.problems[0].code == "container-lost-devices"
    assert "recreate the container" in findings.problems[0].text


@scene("ib-active-down")
def _(stage: Stage) -> None:
    port: Mapping[str, object] = {"state": "1: DOWN", "phys_state": "5: LinkUp", "lid": "0xffff", "rate": "200 Gb/sec (4X HDR)"}
    stage.tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.1", model="MT4124", device=CX6_VF_ID, port=port)

    hardware = stage.look(machine.l40s(1))

    (problem,) = hardware.problems
    assert (problem.code, problem.subject) == ("ib-port-not-active", "mlx5_0:1")
    assert "GUID and policy" in problem.text
    (shown,) = hardware.topology()["rdma_ports"]
    assert (shown["lid"], shown["rail"]) == (None, False)


@scene("ib-polling")
def _(stage: Stage) -> None:
    port = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)", "lid": hex(868), "sm_lid": hex(334)}
    stage.tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0", port=port)

    hardware = stage.look(machine.l40s(1))

    (shown,) = hardware.topology()["rdma_ports"]
    assert (shown["rate"], shown["lid"], shown["sm_lid"]) == (None, None, None)
    # It had a LID once, so it worked once.
    assert codes(hardware) == {"ib-port-down"}


@scene("hca-names-differ")
def _(stage: Stage) -> None:
    for node in ("node1", "node2"):
        names = CAPTURES["hca-names-differ"]["facts"][node]
        rails = [Port(hca=name, port=1, state="ACTIVE", phys_state="LinkUp", link_layer="InfiniBand") for name in names]
        assert nccl_env(rails, None)["NCCL_IB_HCA"] == "=" + ",".join(f"{name}:1" for name in names)


@scene("gloo-ifname")
def _(stage: Stage) -> None:
    stage.tree.netdev("lo", type=772)
    stage.tree.netdev("docker0")
    place = stage.tree.device("pci0000:00/0000:00:01.0/0000:02:00.0", 0x0200, 0x8086, 0x1592)
    stage.tree.netdev("ens1", place)

    env = stage.look(machine.l40s(1)).nccl_env()

    assert env["GLOO_SOCKET_IFNAME"] == "ens1"
    assert env["NCCL_SOCKET_IFNAME"] == "=ens1"


@scene("mixed-gpus")
def _(stage: Stage) -> None:
    hardware = stage.look(machine.mixed())

    assert hardware.nccl_env()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert hardware.pci_groups() == []
    assert hardware.nvlink.islands == []
