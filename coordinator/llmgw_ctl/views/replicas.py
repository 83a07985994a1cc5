"""Replicas as tables."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_ctl.api import ReplicaView
from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import age, duration

EMPTY = "No replicas. See which models want some: llmgwctl model list"


def replicas_grid(replicas: Sequence[ReplicaView], now: float, *, empty: str = EMPTY) -> Grid:
    """``now`` is Unix time in seconds."""
    columns = (
        Column("REPLICA"),
        Column("MODEL", spare=2),
        Column("NODE"),
        Column("STATE"),
        Column("AGE", "right"),
        Column("RESTARTS", "right", spare=1),
        Column("URL", fold=True, spare=3),
        Column("REASON", fold=True),
    )
    ordered = sorted(replicas, key=lambda each: (each.get("model", ""), each.get("id", "")))
    rows = [
        (
            each.get("id", ""),
            each.get("model", ""),
            place_of(each),
            state_of(each),
            age(each.get("started_at"), now),
            str(each.get("restarts", 0)),
            each.get("url") or "-",
            each.get("reason") or "-",
        )
        for each in ordered
    ]
    return Grid(columns, rows, empty)


def replica_facts(replica: ReplicaView, now: float) -> list[tuple[str, str]]:
    """Names and values for ``replica show``."""
    pid, port = replica.get("pid"), replica.get("port")
    nodes = nodes_of(replica)
    engine = " ".join(part for part in (replica.get("engine", ""), replica.get("engine_version", "")) if part)
    facts = [
        ("Replica", replica.get("id", "")),
        ("Model", replica.get("model", "")),
        ("Nodes" if len(nodes) > 1 else "Node", ", ".join(nodes)),
        ("State", state_of(replica)),
        ("Reason", replica.get("reason", "")),
        ("Next try", _next_attempt(replica, now)),
        ("Engine", engine),
        ("URL", replica.get("url") or ""),
        ("Process", f"pid {pid}, port {port}" if pid else ""),
        ("GPUs", ", ".join(replica.get("gpus", []))),
        ("Running", age(replica.get("started_at"), now) if replica.get("started_at") else ""),
        ("Restarts", str(replica.get("restarts", 0))),
        ("Epoch", str(replica.get("epoch", ""))),
        ("Log", replica.get("log_path", "")),
    ]
    return [(name, value) for name, value in facts if value]


def shards_grid(replica: ReplicaView) -> Grid:
    """One row for each node of a replica that spans several."""
    columns = (
        Column("RANK", "right"),
        Column("ROLE", spare=2),
        Column("NODE"),
        Column("STATE"),
        Column("PHASE", spare=1),
        Column("ATTEMPT", "right", spare=1),
        Column("PID", "right", spare=3),
        Column("GPUS", "right", spare=3),
        Column("REASON", fold=True),
    )
    rows = [
        (
            str(each.get("rank", 0)),
            each.get("role", ""),
            each.get("node", ""),
            each.get("state", ""),
            each.get("phase") or "-",
            str(each["attempt"]) if each.get("attempt") else "-",
            str(each.get("pid") or "-"),
            str(len(each.get("gpus", []))),
            each.get("reason") or "-",
        )
        for each in replica.get("shards", [])
    ]
    return Grid(columns, rows, "")


def nodes_of(replica: ReplicaView) -> list[str]:
    """By rank; a coordinator of an earlier version names the head's only."""
    return replica.get("nodes") or [replica.get("node", "")]


def place_of(replica: ReplicaView) -> str:
    """``n1``, ``n1 + n2``, or ``n1 (+3)``."""
    first, *others = nodes_of(replica)
    if len(others) == 1:
        return f"{first} + {others[0]}"
    return f"{first} (+{len(others)})" if others else first


def state_of(replica: ReplicaView) -> str:
    state = replica.get("state", "")
    if replica.get("drained") and state == "Ready":
        return "Drained"
    return "Draining" if replica.get("draining") and state == "Ready" else state


def _next_attempt(replica: ReplicaView, now: float) -> str:
    at = replica.get("next_attempt_at")
    return f"in {duration(at - now)}" if at is not None and at > now else ""
