"""Models as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgw_ctl.api import ModelView
from llmgw_ctl.grid import Column, Grid

EMPTY = "No models yet. Serve one: llmgwctl model serve NAME /path/to/model.gguf"


def models_grid(models: Sequence[ModelView]) -> Grid:
    columns = (
        Column("MODEL"),
        Column("STATE"),
        Column("READY", "right"),
        Column("ENGINE", spare=1),
        Column("REASON", fold=True),
    )
    rows = [
        (
            model.get("name", ""),
            model.get("state", ""),
            f"{model.get('ready', 0)}/{model.get('wanted', 0)}",
            _engines(model.get("spec") or {}),
            model.get("reason") or "-",
        )
        for model in sorted(models, key=lambda each: each.get("name", ""))
    ]
    return Grid(columns, rows, EMPTY)


def model_facts(model: ModelView) -> list[tuple[str, str]]:
    """Names and values for the head of ``model show``."""
    spec = model.get("spec") or {}
    replicas = spec.get("replicas") or {}
    facts = [
        ("Model", model.get("name", "")),
        ("State", model.get("state", "")),
        ("Ready", f"{model.get('ready', 0)} of {model.get('wanted', 0)}"),
        ("Reason", model.get("reason", "")),
        ("Source", spec.get("source") or ""),
        ("Replicas", _range(replicas)),
        ("Policy", (spec.get("routing") or {}).get("policy") or ""),
    ]
    profiles = spec.get("profiles", [])
    for index, profile in enumerate(profiles, start=1):
        facts.append((f"Profile {index}" if len(profiles) > 1 else "Profile", _profile(profile)))
    return [(name, value) for name, value in facts if value]


def _engines(spec: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(profile.get("engine", "?") for profile in spec.get("profiles", []))) or "-"


def _range(replicas: dict[str, Any]) -> str:
    low, high = replicas.get("min", 1), replicas.get("max")
    return str(low) if high is None or high == low else f"{low} to {high}"


def _profile(profile: dict[str, Any]) -> str:
    parts = [profile.get("engine", "?")]
    if profile.get("version"):
        parts.append(f"version {profile['version']}")
    parts += [_override(each) for each in profile.get("versions", [])]
    if profile.get("nodes", 1) > 1:
        parts.append(f"over {profile['nodes']} nodes")
    if profile.get("gpus"):
        of_class = f" of class {profile['gpu_class']}" if profile.get("gpu_class") else ""
        parts.append(f"{profile['gpus']} GPU" + ("s" if profile["gpus"] > 1 else "") + of_class)
    if profile.get("memory"):
        parts.append(f"{profile['memory']} memory")
    if profile.get("args"):
        parts.append("args " + " ".join(profile["args"]))
    if profile.get("command"):
        parts.append("command " + " ".join(profile["command"]))
    if profile.get("node_selector"):
        parts.append("on " + ",".join(f"{key}={value}" for key, value in sorted(profile["node_selector"].items())))
    return ", ".join(parts)


def _override(override: dict[str, Any]) -> str:
    labels = [f"{key}={value}" for key, value in sorted(override.get("node_selector", {}).items())]
    where = [*labels, *([override["gpu_class"]] if override.get("gpu_class") else [])]
    return f"version {override.get('version', '?')} on {','.join(where)}"
