"""The cluster at a glance."""

from __future__ import annotations

from llmgw_ctl.api import StatusView
from llmgw_ctl.humanize import age


def status_facts(status: StatusView, now: float) -> list[tuple[str, str]]:
    """Names and values for the head of ``status``; ``now`` is Unix time in seconds."""
    cluster = status.get("cluster") or {}
    nodes = status.get("nodes") or {}
    alive, total = nodes.get("alive", 0), nodes.get("total", 0)
    facts = [
        (
            "Cluster",
            f"{cluster.get('name', '?')} ({cluster.get('id', '?')})" if cluster else "not set up yet: no leader so far",
        ),
        ("Nodes", f"{alive} of {total} alive" if total else "none"),
    ]
    for each in sorted(status.get("coordinators", []), key=lambda one: one.get("id", "")):
        leads = each.get("leader") or each.get("id") == status.get("leader")
        up = f"up {age(each['started_at'], now)}" if each.get("started_at") else ""
        parts = [each.get("id", ""), each.get("address", ""), each.get("version", ""), up, "leader" if leads else "standby"]
        facts.append(("Coordinator", "  ".join(filter(None, parts))))
    if not status.get("leader"):
        facts.append(("Leader", "none: models run on, but nothing is placed or moved"))
    routers = sorted(status.get("routers", []), key=lambda one: one.get("id", ""))
    facts += [
        ("Router", "  ".join(filter(None, (each.get("id"), each.get("address"), each.get("version"))))) for each in routers
    ]
    if not routers:
        facts.append(("Router", "none: nobody serves the OpenAI API"))
    return facts
