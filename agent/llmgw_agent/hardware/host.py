"""The host itself: processors, memory, disks, kernel, where it runs, and whether its clock can be trusted."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from llmgw_agent.hardware.clocksync import ClockFacts
from llmgw_agent.hardware.clocksync import read as read_clock
from llmgw_agent.hardware.disks import Disk
from llmgw_agent.hardware.disks import read as read_disks
from llmgw_agent.hardware.sysfs import Tree


class Cpu(msgspec.Struct):
    """``cores`` counts physical cores, ``threads`` logical CPUs online, ``usable`` those that this process may run on."""

    model: str
    sockets: int
    cores: int
    threads: int
    usable: int


class Memory(msgspec.Struct):
    total_bytes: int
    available_bytes: int
    swap_bytes: int = 0
    #: Page size in kB → [total, free].
    huge_pages: dict[str, list[int]] = {}
    transparent_huge_pages: str = ""


class Host(msgspec.Struct, kw_only=True):
    hostname: str
    os: str
    kernel: str
    arch: str
    cpu: Cpu
    memory: Memory
    disks: list[Disk] = []
    #: docker, podman, lxc, systemd-nspawn…; None outside containers.
    container: str | None = None
    #: The product that the machine says it is, when that is a known virtual machine.
    vm: str | None = None
    cgroup: int = 0
    systemd: bool = False
    clock: ClockFacts = msgspec.field(default_factory=ClockFacts)
    nvidia_module: str | None = None


def read(tree: Tree, paths: list[str], proc: Path = Path("/proc"), root: Path = Path("/")) -> Host:
    """``paths`` are folders whose file systems are of interest; ``proc`` and ``root`` are other trees in tests."""
    release = _os_release(root)
    return Host(
        hostname=platform.node(),
        os=release.get("PRETTY_NAME", platform.system()),
        kernel=_text(proc / "sys/kernel/osrelease") or platform.release(),
        arch=platform.machine(),
        cpu=_cpu(tree, proc),
        memory=_memory(tree, proc),
        disks=read_disks(paths, tree),
        container=container(proc, root),
        vm=_vm(tree),
        cgroup=_cgroup(proc),
        systemd=(root / "run/systemd/system").is_dir(),
        clock=read_clock(),
        nvidia_module=tree.text("module/nvidia/version"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _os_release(root: Path) -> dict[str, str]:
    text = _text(root / "etc/os-release") or ""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value.strip().strip('"') for key, _, value in pairs}


def _cpu(tree: Tree, proc: Path) -> Cpu:
    sockets: set[int] = set()
    cores: set[tuple[int, int]] = set()
    threads = 0
    for name in tree.names("devices/system/cpu"):
        if not (name.startswith("cpu") and name[3:].isdigit()):
            continue
        package = tree.number("devices/system/cpu", name, "topology/physical_package_id")
        if package is None:
            continue
        threads += 1
        # -1 is how virtual machines say that there is only one.
        sockets.add(max(package, 0))
        cores.add((package, tree.number("devices/system/cpu", name, "topology/core_id") or 0))
    usable = len(os.sched_getaffinity(0))
    info = _text(proc / "cpuinfo") or ""
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "")
    return Cpu(
        model=model or platform.machine(),
        sockets=len(sockets) or 1,
        cores=len(cores) or usable,
        threads=threads or usable,
        usable=usable,
    )


def _memory(tree: Tree, proc: Path) -> Memory:
    values = {}
    for line in (_text(proc / "meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    pages = {}
    for name in tree.names("kernel/mm/hugepages"):
        total = tree.number("kernel/mm/hugepages", name, "nr_hugepages")
        if total:
            free = tree.number("kernel/mm/hugepages", name, "free_hugepages") or 0
            pages[name.removeprefix("hugepages-").removesuffix("kB")] = [total, free]
    transparent = tree.text("kernel/mm/transparent_hugepage/enabled") or ""
    return Memory(
        total_bytes=values.get("MemTotal", 0),
        available_bytes=values.get("MemAvailable", 0),
        swap_bytes=values.get("SwapTotal", 0),
        huge_pages=pages,
        transparent_huge_pages=transparent.partition("[")[2].partition("]")[0],
    )


_CGROUP_MARKS = {"docker": "docker", "libpod": "podman", "kubepods": "kubernetes", "containerd": "containerd", "lxc": "lxc"}


def container(proc: Path, root: Path) -> str | None:
    """The kind of container that this process runs in; None on a host."""
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    said = _text(root / "run/systemd/container")
    if said:
        return said
    groups = _text(proc / "1/cgroup") or ""
    return next((name for mark, name in _CGROUP_MARKS.items() if mark in groups), None)


_VM_WORDS = {
    "KVM": "kvm",
    "QEMU": "qemu",
    "VMware": "vmware",
    "VirtualBox": "virtualbox",
    "Virtual Machine": "hyper-v",
    "Amazon EC2": "ec2",
    "Google Compute Engine": "gce",
    "OpenStack": "openstack",
    "HVM domU": "xen",
    "Firecracker": "firecracker",
}


def _vm(tree: Tree) -> str | None:
    said = f"{tree.text('class/dmi/id/sys_vendor') or ''} {tree.text('class/dmi/id/product_name') or ''}"
    # Bare-metal instances of clouds carry the cloud's name too.
    if "metal" in said:
        return None
    return next((name for word, name in _VM_WORDS.items() if word in said), None)


def _cgroup(proc: Path) -> int:
    """2 when the unified hierarchy is all there is, 1 otherwise, 0 when there are no cgroups."""
    groups = (_text(proc / "self/cgroup") or "").splitlines()
    if not groups:
        return 0
    return 2 if all(line.startswith("0::") for line in groups) else 1
