"""Weights as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import age, duration, size

EMPTY = "No weights are stored. Models fetch what they need; ahead of time: llmgwctl weights fetch SOURCE --node NODE"
_DIGITS = 12
Json = dict[str, Any]


def weights_grid(nodes: Sequence[Json], now: float) -> Grid:
    """Of the answer to ``GET weights``."""
    columns = (
        Column("NODE"),
        Column("SOURCE", fold=True),
        Column("SIZE", "right"),
        Column("FILES", "right", spare=3),
        Column("MODEL", fold=True),
        Column("LAST USED", spare=1),
        Column("CONTENT", spare=2),
        Column("USED BY", fold=True),
    )
    rows = [
        (
            node.get("node", ""),
            each.get("source", ""),
            size(each.get("bytes")),
            str(each.get("files", "-")),
            model_line(each.get("facts")),
            age(each.get("last_used_at"), now),
            str(each.get("content", ""))[:_DIGITS],
            ", ".join(each.get("used_by", [])) or "-",
        )
        for node in nodes
        for each in sorted(node.get("weights", []), key=lambda one: str(one.get("source", "")))
    ]
    return Grid(columns, rows, EMPTY)


def copies_grid(copies: Sequence[Json], now: float) -> Grid:
    """Where the same weights lie."""
    columns = (
        Column("NODE"),
        Column("SOURCE", fold=True),
        Column("FETCHED", spare=1),
        Column("LAST USED"),
        Column("USED BY", fold=True),
        Column("PATH", fold=True),
    )
    rows = [
        (
            each.get("node", ""),
            each.get("source", ""),
            age(each.get("fetched_at"), now),
            age(each.get("last_used_at"), now),
            ", ".join(each.get("used_by", [])) or "-",
            each.get("path", ""),
        )
        for each in copies
    ]
    return Grid(columns, rows)


def weights_facts(weights: Json) -> list[tuple[str, str]]:
    """Names and values for the head of ``weights show``."""
    facts = weights.get("facts") or {}
    found = [
        ("Content", str(weights.get("content", ""))),
        ("Size", f"{size(weights.get('bytes'))} in {_files(weights.get('files', 0))}"),
        ("Revision", weights.get("revision") or ""),
        ("Format", facts.get("format", "")),
        ("Name", facts.get("name") or ""),
        ("Architecture", facts.get("architecture") or ""),
        ("Parameters", _count(facts.get("parameters"))),
        ("Quantisation", facts.get("quantisation") or facts.get("dtype") or ""),
        ("Layers", _number(facts.get("layers"))),
        ("Heads", _heads(facts)),
        ("Context", f"{facts['context_length']} tokens" if facts.get("context_length") else ""),
        ("Vocabulary", _number(facts.get("vocabulary"))),
        ("Experts", _number(facts.get("experts"))),
        ("KV cache", f"{size(facts['kv_bytes_per_token'])} a token" if facts.get("kv_bytes_per_token") else ""),
    ]
    return [(name, value) for name, value in found if value]


def model_line(facts: Json | None) -> str:
    """``llama 135M Q4_K_M``; ``-`` when the files do not say."""
    if not facts:
        return "-"
    parts = [facts.get("architecture"), _count(facts.get("parameters")), facts.get("quantisation") or facts.get("dtype")]
    return " ".join(str(each) for each in parts if each) or facts.get("format", "-")


def fetch_line(step: Json) -> str:
    """How far a fetch is."""
    done, total = step.get("bytes_done", 0), step.get("bytes_total")
    amount = f"{size(done)} of {size(total)}" if total else size(done)
    if waits_for := step.get("waits_for"):
        return f"waits for node {waits_for}, which fetches the same; {amount} are here"
    match step.get("phase"):
        case "waiting":
            return "waits for another process that uses the same weights"
        case "resolving":
            return "asks what the source consists of"
        case "verifying":
            return f"verifies {amount}"
        case "ready":
            return f"here: {size(done)} in {step.get('path', '?')}"
    place = f", from {_host(step['place'])}" if step.get("place") else ""
    return f"{amount}, {size(step.get('bytes_per_second', 0))}/s{_left(step)}{place}"


def verify_line(step: Json) -> str:
    """How far a verification is."""
    if step.get("files") is not None:
        wrong = len(step.get("wrong") or [])
        return f"{_files(step['files'])}, {size(step.get('bytes_done', 0))} read, {wrong or 'none'} wrong"
    return f"{size(step.get('bytes_done', 0))} of {size(step.get('bytes_total', 0))} read"


def _left(step: Json) -> str:
    rate, total = step.get("bytes_per_second", 0), step.get("bytes_total")
    if not rate or not total:
        return ""
    return f", {duration((total - step.get('bytes_done', 0)) / rate)} left"


def _count(value: int | None) -> str:
    """Of parameters: ``135M``, ``7.2B``."""
    if not value:
        return ""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if value >= unit:
            scaled = value / unit
            return f"{scaled:.1f}{name}" if scaled < 10 else f"{scaled:.0f}{name}"
    return str(value)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _host(place: str) -> str:
    try:
        return urlsplit(place).hostname or place
    except ValueError:
        return place


def _number(value: int | None) -> str:
    return str(value) if value else ""


def _heads(facts: Json) -> str:
    heads, kv_heads = facts.get("heads"), facts.get("kv_heads")
    if not heads:
        return ""
    return f"{heads}, {kv_heads} for keys and values" if kv_heads and kv_heads != heads else str(heads)
