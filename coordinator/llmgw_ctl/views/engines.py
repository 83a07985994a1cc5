"""Engines as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import age, size
from llmgw_proto.sources import redacted

EMPTY = "No node installs engines. Set one: llmgwctl engine set llamacpp --version V"
NO_SETTINGS = "Nothing is set for the fleet. Set a version: llmgwctl engine set vllm --version V"


def engines_grid(nodes: Sequence[dict[str, Any]], now: float) -> Grid:
    columns = (
        Column("NODE"),
        Column("ENGINE"),
        Column("VERSION"),
        Column("STATE"),
        Column("DEFAULT"),
        Column("SIZE", "right", spare=2),
        Column("AGE", "right", spare=3),
        Column("USED BY", fold=True, spare=1),
        Column("DETAIL", fold=True),
    )
    rows = [
        (
            str(node.get("node", "")),
            str(each.get("engine", "")),
            str(each.get("version", "")),
            str(each.get("state", "")),
            _default(each),
            size(each["bytes"]) if each.get("bytes") else "-",
            age(each["installed_at"], now) if each.get("installed_at") else "-",
            ", ".join(each.get("used_by") or []) or "-",
            str(each.get("detail") or "-"),
        )
        for node in nodes
        for each in node.get("engines", [])
    ]
    return Grid(columns, rows, EMPTY)


def settings_grid(settings: Sequence[dict[str, Any]]) -> Grid:
    """One row for each version that is set, and for each whose origin alone is."""
    columns = (Column("ENGINE"), Column("NODES", fold=True), Column("VERSION"), Column("FROM", fold=True))
    rows = []
    for each in settings:
        engine, releases = str(each.get("engine", "")), each.get("releases") or {}
        chosen = [(selector(one), str(one.get("version"))) for one in each.get("overrides") or []]
        if each.get("version") is not None:
            chosen.append(("all others" if chosen else "all", str(each["version"])))
        used = {version for _, version in chosen}
        chosen += [("models that wish it", version) for version in releases if version not in used]
        rows += [(engine, who, version, origin(releases.get(version) or {})) for who, version in chosen]
    return Grid(columns, rows, NO_SETTINGS)


def selector(override: dict[str, Any]) -> str:
    """``H100-80GB, ring=canary``."""
    labels = [f"{key}={value}" for key, value in sorted((override.get("labels") or {}).items())]
    return ", ".join([*([override["gpu_class"]] if override.get("gpu_class") else []), *labels])


def origin(release: dict[str, Any]) -> str:
    """Where the files come from, in short."""
    digest = str(release.get("sha256") or "")[:12]
    archive = _shown(str(release.get("archive") or ""))
    if release.get("build"):
        built = f"source {archive} {digest}" if archive else "the source package"
        return f"built on the node from {built}"
    if archive:
        return f"archive {archive} {digest}"
    if release.get("lock_sha256"):
        return f"lock {str(release['lock_sha256'])[:12]}"
    return ", ".join(release.get("requirements") or []) or "the engine's package, resolved on the node"


def _shown(place: str) -> str:
    """Addresses carry passwords and signatures."""
    try:
        return redacted(place) if place.startswith(("http:", "https:")) else place
    except ValueError:
        return place


def step_line(engine: str, node: str, step: dict[str, Any]) -> str:
    said = f": {step['text']}" if step.get("text") else ""
    return f"installing {engine} on {node}, {step.get('fraction', 0):.0%}, {step.get('phase', '')}{said}"


def _default(engine: dict[str, Any]) -> str:
    if not engine.get("default"):
        return "-"
    return {"node": "by node", "fleet": "by fleet"}.get(str(engine.get("origin")), "yes")
