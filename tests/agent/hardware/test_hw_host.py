"""Facts about the host itself."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from llmgw_agent.hardware import clocksync, disks, host
from llmgw_agent.hardware.sysfs import Tree
from llmgw_testing.sysfs_trees import SysfsTree


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A two-socket host: ``sys``, ``proc`` and ``root`` below."""
    tree = SysfsTree(tmp_path / "sys")
    for thread in range(8):
        tree.write(f"devices/system/cpu/cpu{thread}/topology", physical_package_id=thread % 4 // 2, core_id=thread % 2)
    tree.write("kernel/mm/hugepages/hugepages-2048kB", nr_hugepages=1024, free_hugepages=1000)
    tree.write("kernel/mm/hugepages/hugepages-1048576kB", nr_hugepages=0, free_hugepages=0)
    tree.write("kernel/mm/transparent_hugepage", enabled="always [madvise] never")
    tree.write("class/dmi/id", sys_vendor="Supermicro", product_name="SYS-821GE-TNHR")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "1").mkdir()
    (proc / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n")
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemAvailable: 600 kB\nSwapTotal: 0 kB\n")
    (proc / "self/cgroup").write_text("0::/system.slice/llmgw-agent.service\n")
    (proc / "1/cgroup").write_text("0::/init.scope\n")
    (tmp_path / "root/run/systemd/system").mkdir(parents=True)
    (tmp_path / "root/etc").mkdir()
    (tmp_path / "root/etc/os-release").write_text('NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    return tmp_path


def look(world: Path) -> host.Host:
    return host.read(Tree(world / "sys"), [str(world)], world / "proc", world / "root")


def test_bare_metal_host(world: Path) -> None:
    facts = look(world)

    assert (facts.cpu.model, facts.cpu.sockets, facts.cpu.cores, facts.cpu.threads) == (
        "Intel(R) Xeon(R) Platinum 8480+",
        2,
        4,
        8,
    )
    assert (facts.memory.total_bytes, facts.memory.available_bytes) == (1_024_000, 614_400)
    assert facts.memory.huge_pages == {"2048": [1024, 1000]}
    assert facts.memory.transparent_huge_pages == "madvise"
    assert (facts.container, facts.vm, facts.cgroup, facts.systemd) == (None, None, 2, True)
    assert facts.os == "Debian GNU/Linux 12 (bookworm)"
    assert facts.arch == platform.machine()
    (disk,) = facts.disks
    assert disk.path == str(world)
    assert 0 < disk.free_bytes <= disk.total_bytes


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("root/.dockerenv", "", "docker"),
        ("root/run/.containerenv", "", "podman"),
        ("root/run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        ("proc/1/cgroup", "12:cpuset:/kubepods/besteffort/pod1\n", "kubernetes"),
        ("proc/1/cgroup", "1:name=systemd:/lxc/web\n", "lxc"),
    ],
)
def test_containers(file: str, text: str, expected: str, world: Path) -> None:
    (world / file).write_text(text)
    assert look(world).container == expected


@pytest.mark.parametrize(
    ("vendor", "product", "expected"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu"),
        ("Microsoft Corporation", "Virtual Machine", "hyper-v"),
        ("Amazon EC2", "p5.48xlarge", "ec2"),
        ("Amazon EC2", "i3.metal", None),
        ("Dell Inc.", "PowerEdge XE9680", None),
    ],
)
def test_virtual_machines(vendor: str, product: str, expected: str | None, world: Path) -> None:
    SysfsTree(world / "sys").write("class/dmi/id", sys_vendor=vendor, product_name=product)
    assert look(world).vm == expected


@pytest.mark.parametrize(("text", "version"), [("0::/\n", 2), ("4:memory:/x\n0::/x\n", 1), ("", 0)])
def test_cgroup_version(text: str, version: int, world: Path) -> None:
    (world / "proc/self/cgroup").write_text(text)
    assert look(world).cgroup == version


def test_host_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    facts = look(tmp_path)
    assert facts.cpu.sockets == 1
    assert facts.memory.total_bytes == 0


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\n/dev/nvme0n1p2 {tmp_path} xfs rw 0 0\nserver:/x {tmp_path}x nfs rw 0 0\n")
    tree = SysfsTree(tmp_path / "sys")
    tree.write("devices/pci0000:00/nvme0/nvme0n1/queue", rotational=0)
    tree.write("devices/pci0000:00/nvme0/nvme0n1/nvme0n1p2", partition=2)
    tree.link("class/block/nvme0n1p2", "devices/pci0000:00/nvme0/nvme0n1/nvme0n1p2")

    (disk,) = disks.read([str(tmp_path / "models" / "not" / "yet")], Tree(tree.root), mounts)

    assert (disk.mount, disk.kind, disk.rotational) == (str(tmp_path), "xfs", False)
    assert disk.path.endswith("models/not/yet")


def test_clock_of_this_machine_is_read_without_changing_it() -> None:
    facts = clocksync.read()
    assert facts.plausible
    assert facts.synchronised is not None
    assert facts.error_seconds is not None
    assert facts.error_seconds >= 0
