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
            each.get("node", ""),
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
    engine = " ".join(part for part in (replica.get("engine", ""), replica.get("engine_version", "")) if part)
    facts = [
        ("Replica", replica.get("id", "")),
        ("Model", replica.get("model", "")),
        ("Node", replica.get("node", "")),
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


def state_of(replica: ReplicaView) -> str:
    state = replica.get("state", "")
    return "Draining" if replica.get("draining") and state == "Ready" else state


def _next_attempt(replica: ReplicaView, now: float) -> str:
    at = replica.get("next_attempt_at")
    return f"in {duration(at - now)}" if at is not None and at > now else ""
