"""Draws a node's topology (the JSON that agents publish) for people. Pure: JSON in, rich renderables out.

Shared by ``llmgw-agent detect`` and ``llmgwctl``. Missing or unknown fields are left out, never an error: agents of other
versions publish more or less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Json = Mapping[str, Any]

_NEAR = {"PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red", "UNKNOWN": "dim"}


def size(count: Any) -> str:
    """Bytes for people: ``80.0 GiB``."""
    if not isinstance(count, int | float):
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def table(*columns: str, title: str | None = None) -> Table:
    """An open table: no frame, headers in bold, nothing wrapped that need not be."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def text(value: object, style: str = "") -> Text:
    """A cell as it is: square brackets are no markup, and control characters from a device's name do not reach the terminal."""
    return Text("".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(value)), style)


def row(made: Table, *cells: object) -> None:
    """Adds a row of plain values and ready-made cells."""
    made.add_row(*[cell if isinstance(cell, Text) else text(cell) for cell in cells])


def gpu_names(topology: Json) -> dict[str, str]:
    """Short names for the GPUs of one node, ``GPU0``…, by UUID (or PCI address while a GPU cannot be read)."""
    return {gpu_key(gpu): f"GPU{gpu.get('index', at)}" for at, gpu in enumerate(topology.get("gpus", []))}


def gpu_key(gpu: Json) -> str:
    return str(gpu.get("uuid") or gpu.get("pci") or f"GPU {gpu.get('index')}")


def problems(topology: Json) -> RenderableType | None:
    """What is wrong, or None."""
    found = topology.get("problems", [])
    if not found:
        return None
    names = gpu_names(topology)
    made = table("PROBLEM", "AT", "WHAT")
    for each in found:
        subject = str(each.get("subject", ""))
        row(made, text(each.get("code", ""), "bold red"), names.get(subject, subject), str(each.get("text", "")))
    return made


def gpus(topology: Json) -> RenderableType | None:
    """The GPUs with class, place and state, or None when there are none."""
    found = topology.get("gpus", [])
    if not found:
        return None
    made = table("GPU", "CLASS", "MEMORY", "PCI", "NUMA", "NVLINK", "POWER", "TEMP", "STATE", "UUID")
    for at, gpu in enumerate(found):
        power = gpu.get("power") or {}
        row(
            made,
            f"GPU{gpu.get('index', at)}",
            str(gpu.get("class") or "?"),
            size(gpu.get("memory_bytes")),
            str(gpu.get("pci") or "-"),
            _or_dash(gpu.get("numa")),
            nvlink_count(gpu),
            _power(gpu.get("power_usage"), power.get("limit")),
            _or_dash(gpu.get("temperature"), "°C"),
            gpu_state(gpu),
            gpu_key(gpu),
        )
        for part in (gpu.get("mig") or {}).get("instances", []):
            name = str(part.get("name") or "").rpartition(" ")[2]
            row(made, "  MIG", name, size(part.get("memory_bytes")), *[""] * 6, str(part.get("uuid")))
    return made


def _or_dash(value: Any, unit: str = "") -> str:
    return "-" if value is None else f"{value}{unit}"


def _power(usage: Any, limit: Any) -> str:
    if limit is None:
        return "-" if usage is None else f"{usage:.0f} W"
    return f"{limit:.0f} W" if usage is None else f"{usage:.0f}/{limit:.0f} W"


def nvlink_count(gpu: Json) -> str:
    """``18/18`` live links of all, ``-`` for a GPU without NVLink."""
    links = gpu.get("nvlink")
    return "-" if not links else f"{links.get('active', 0)}/{links.get('total', 0)}"


def gpu_state(gpu: Json) -> Text:
    """``ok``, ``MIG``, or the code of what it is quarantined for."""
    quarantine = gpu.get("quarantine")
    if quarantine:
        return text(str(quarantine).partition(":")[0], "bold red")
    return Text("MIG", "cyan") if gpu.get("mig") else Text("ok", "green")


def matrix(topology: Json) -> RenderableType | None:
    """How GPUs and adapters reach each other; None when there is nothing to compare."""
    names = list(gpu_names(topology).values())
    keys = list(gpu_names(topology))
    hcas = [
        str(hca.get("name")) for hca in topology.get("hcas", []) if not hca.get("software") and not hca.get("virtual_function")
    ]
    if len(names) + len(hcas) < 2:
        return None
    rows = topology.get("gpu_links", [])
    far = topology.get("gpu_nic_distance", {})
    made = table("", *names, *hcas, "NUMA", "CPUS")
    for at, (key, name) in enumerate(zip(keys, names, strict=True)):
        reach = rows[at] if at < len(rows) else []
        gpu = topology["gpus"][at]
        row(
            made,
            text(name, "bold"),
            *[_word(reach[to] if to < len(reach) else "?") for to in range(len(names))],
            *[_word(far.get(key, {}).get(hca, "?")) for hca in hcas],
            _or_dash(gpu.get("numa")),
            str(gpu.get("cpus") or "-"),
        )
    return made


def _word(word: str) -> Text:
    if word == "X":
        return Text("X", "dim")
    return text(word, "bold green" if word.startswith("NV") else _NEAR.get(word, ""))


def islands(topology: Json) -> list[str]:
    """NVLink islands and PCIe groups in lines."""
    names = gpu_names(topology)
    lines = []
    for at, island in enumerate(topology.get("islands", [])):
        how = "through NVSwitch" if island.get("switched") else "bridged" if len(island.get("uuids", [])) == 2 else "meshed"
        full = "all to all" if island.get("all_to_all") else "not all to all"
        line = f"island {at}: {span(island.get('uuids', []), names)} ({how}, {full})"
        if not island.get("all_to_all"):
            line += "; groups " + " and ".join(span(group, names) for group in island.get("tp_groups", []))
        if island.get("domain"):
            line += f"; domain {island['domain']}" + ("" if island.get("imex") else ", IMEX channels missing")
        lines.append(line)
    lines += [f"PCIe group: {span(group, names)} (no NVLink)" for group in topology.get("pci_groups", [])]
    return lines


def span(uuids: Sequence[str], names: Mapping[str, str]) -> str:
    """``GPU0-3``, ``GPU0-2,5``; GPUs without a number in full."""
    short = [names.get(uuid, uuid) for uuid in uuids]
    if not all(name.startswith("GPU") and name[3:].isdigit() for name in short):
        return ", ".join(short)
    runs: list[list[int]] = []
    for number in sorted(int(name[3:]) for name in short):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "GPU" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def ports(topology: Json) -> RenderableType | None:
    """RDMA ports, rails marked, or None when there are none."""
    found = topology.get("rdma_ports", [])
    if not found:
        return None
    serves: dict[str, list[str]] = {}
    for key, hcas in topology.get("gpu_nics", {}).items():
        for hca in hcas:
            serves.setdefault(str(hca), []).append(gpu_names(topology).get(key, key))
    made = table("PORT", "STATE", "LAYER", "RATE", "NETDEV", "NUMA", "RAIL", "NEAREST OF")
    for port in found:
        active = port.get("state") == "ACTIVE"
        state = str(port.get("state")) if active else f"{port.get('state')}/{port.get('phys_state')}"
        role = (
            "yes"
            if port.get("rail")
            else "software"
            if port.get("software")
            else "VF"
            if port.get("virtual_function")
            else "no"
        )
        row(
            made,
            f"{port.get('hca')}:{port.get('port')}",
            text(state, "green" if active else "red"),
            str(port.get("link_layer")),
            str(port.get("rate_text") or "-"),
            str(port.get("netdev") or "-"),
            _or_dash(port.get("numa")),
            role,
            ", ".join(serves.get(str(port.get("hca")), [])) or "-",
        )
    return made


def host_lines(topology: Json) -> list[str]:
    """The host in a few lines."""
    host = topology.get("host") or {}
    lines = []
    if host:
        cpu, memory = host.get("cpu") or {}, host.get("memory") or {}
        where = host.get("container") or host.get("vm")
        lines.append(
            f"{host.get('hostname')}: {host.get('os')}, kernel {host.get('kernel')}"
            + (f", in {where}" if where else "")
            + f", cgroup v{host.get('cgroup')}"
            + (", systemd" if host.get("systemd") else ", no systemd")
        )
        nodes = sum(1 for node in topology.get("numa", []) if node.get("cpus"))
        lines.append(
            f"{cpu.get('model')}: {cpu.get('sockets')} socket(s), {cpu.get('cores')} cores, {cpu.get('threads')} threads, "
            f"{nodes or 1} NUMA node(s); memory {size(memory.get('total_bytes'))}{_huge(memory.get('huge_pages') or {})}"
        )
        for disk in host.get("disks", []):
            free, total = size(disk.get("free_bytes")), size(disk.get("total_bytes"))
            lines.append(f"disk {disk.get('path')}: {free} free of {total} ({disk.get('kind')})")
    driver = topology.get("driver")
    if driver:
        lines.append(f"NVIDIA driver {driver.get('version')}, CUDA {driver.get('cuda')}, NVML {driver.get('nvml')}")
    return lines


def _huge(pages: Mapping[str, Any]) -> str:
    return "".join(f", {total if isinstance(total, int) else total[0]} huge pages of {kb} kB" for kb, total in pages.items())


def networks(topology: Json) -> list[str]:
    """Interfaces by role and the environment for collectives."""
    roles = topology.get("interfaces") or {}
    lines = []
    if roles.get("management"):
        fabric = ", ".join(roles.get("fabric", [])) or "none"
        lines.append(f"management interface {roles['management']}; fabric interfaces: {fabric}")
    if topology.get("gpus") or topology.get("rdma_ports"):
        lines += [f"{name}={value}" for name, value in (topology.get("nccl_env") or {}).items()]
    return lines


def node(topology: Json) -> RenderableType:
    """Everything on one screen: problems first."""
    parts: list[RenderableType] = []

    def add(part: RenderableType | None) -> None:
        if part is not None:
            parts.extend([part, ""])

    add(problems(topology))
    add(_lines(host_lines(topology)))
    add(gpus(topology) or Text("no GPUs that can be read" if topology.get("problems") else "no GPUs"))
    add(matrix(topology))
    add(_lines(islands(topology)))
    add(ports(topology))
    add(_lines(networks(topology)))
    add(_lines([f"note: {note}" for note in topology.get("notes", [])], "dim"))
    return Group(*parts[:-1])


def _lines(lines: Iterable[str], style: str = "") -> Text | None:
    whole = "\n".join(lines)
    return text(whole, style) if whole else None
