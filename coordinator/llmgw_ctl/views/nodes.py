"""Nodes as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from llmgw_ctl.api import NodeView
from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import age, size

EMPTY = "No nodes yet. Start llmgw-agent on a machine and point its etcd: section at this cluster."


def nodes_grid(nodes: Sequence[NodeView]) -> Grid:
    columns = (
        Column("NODE"),
        Column("STATE"),
        Column("CPUS", "right", spare=1),
        Column("MEMORY", "right"),
        Column("COMMITTED", "right", spare=2),
        Column("GPUS", fold=True),
        Column("ENGINES", fold=True),
        Column("REPLICAS", "right"),
        Column("VERSION", spare=3),
    )
    rows = []
    for node in sorted(nodes, key=lambda each: each.get("name", "")):
        inventory = node.get("inventory") or {}
        rows.append(
            (
                node.get("name", ""),
                liveness(node),
                str((inventory.get("cpu") or {}).get("cores", "-")),
                size((inventory.get("memory") or {}).get("total_bytes")),
                size(node.get("memory_committed_bytes", 0)),
                gpu_summary(inventory.get("gpus", [])),
                ", ".join(dict.fromkeys(each.get("name", "?") for each in inventory.get("engines", []))) or "-",
                str(len(node.get("replicas", []))),
                inventory.get("version", "-"),
            )
        )
    return Grid(columns, rows, EMPTY)


def node_facts(node: NodeView, now: float) -> list[tuple[str, str]]:
    """Names and values for ``node show``."""
    inventory, status = node.get("inventory") or {}, node.get("status") or {}
    cpu, memory = inventory.get("cpu") or {}, inventory.get("memory") or {}
    facts = [
        ("Node", node.get("name", "")),
        ("State", liveness(node)),
        ("Host", ", ".join(filter(None, (inventory.get("hostname"), inventory.get("os"), inventory.get("kernel"))))),
        ("Agent", " at ".join(filter(None, (inventory.get("version"), node.get("grpc_address"))))),
        ("CPU", f"{cpu.get('cores', '?')} cores {cpu.get('model', '')}".strip() if cpu else ""),
        ("Load", f"{status['load1']:.2f}" if "load1" in status else ""),
        ("Memory", _memory(memory, status, node.get("memory_committed_bytes", 0))),
    ]
    facts += [("Disk", _disk(each)) for each in status.get("disks") or inventory.get("disks", [])]
    facts += [("GPU", _gpu(each)) for each in inventory.get("gpus", [])]
    facts += [("Engine", _engine(each)) for each in inventory.get("engines", [])]
    labels = inventory.get("labels", {})
    facts.append(("Labels", ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))))
    facts += [("Problem", each) for each in dict.fromkeys([*inventory.get("problems", []), *status.get("problems", [])])]
    if status.get("updated_at"):
        facts.append(("Reported", f"{age(status['updated_at'], now)} ago"))
    return [(name, value) for name, value in facts if value]


def bandwidth_line(found: dict[str, Any]) -> str:
    """``n1 to n2: 387.2 Gb/s over RDMA (mlx5_0:1 to mlx5_0:1), measured for 5.0 s``."""
    way = f"RDMA ({found.get('port')} to {found.get('peer_port')})" if found.get("method") == "rdma" else "TCP"
    rate, seconds = found.get("gigabits_per_second", 0), found.get("seconds", 0)
    return f"{found.get('node')} to {found.get('peer')}: {rate:.1f} Gb/s over {way}, measured for {seconds:.1f} s"


def liveness(node: NodeView) -> str:
    return "alive" if node.get("alive") else "gone"


def gpu_summary(gpus: Sequence[dict[str, Any]]) -> str:
    """``8x H100-80GB``; ``-`` without any."""
    counts = Counter(gpu.get("gpu_class") or gpu.get("name", "GPU") for gpu in gpus)
    return ", ".join(f"{count}x {name}" for name, count in sorted(counts.items())) or "-"


def _memory(memory: dict[str, Any], status: dict[str, Any], committed: int) -> str:
    if not memory:
        return ""
    available = f", {size(status['memory_available_bytes'])} available now" if "memory_available_bytes" in status else ""
    return f"{size(memory.get('total_bytes'))} in all, {size(committed)} committed to replicas{available}"


def _disk(disk: dict[str, Any]) -> str:
    return f"{disk.get('path', '?')}: {size(disk.get('free_bytes'))} free of {size(disk.get('total_bytes'))}"


def _gpu(gpu: dict[str, Any]) -> str:
    text = f"{gpu.get('name', '?')}, {size(gpu.get('memory_bytes'))}, {gpu.get('uuid', '')}"
    return f"{text}; in quarantine: {gpu['quarantine']}" if gpu.get("quarantine") else text


def _engine(engine: dict[str, Any]) -> str:
    detail = f" ({engine['detail']})" if engine.get("detail") else ""
    return f"{engine.get('name', '?')} {engine.get('version', '')}".rstrip() + detail
