"""What an agent knows of a replica's shard, as facts and tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import age, duration, size

Details = Mapping[str, Any]
_PHASES = (("install", "engine"), ("fetch", "weights"), ("start_to_listen", "start"), ("listen_to_ready", "load"))


def detail_facts(details: Details, now: float) -> list[tuple[str, str]]:
    """Names and values; none where there is nothing to tell."""
    measured = details.get("measured") or {}
    ports = {name: port for name, port in (details.get("ports") or {}).items() if name != "http"}
    rate = measured.get("tokens_per_second")
    facts = [
        ("Attempt", details.get("attempt", "")),
        ("Command", shlex.join(details.get("argv", []))),
        ("Environment", ", ".join(details.get("environment", []))),
        ("Other ports", ", ".join(f"{name} {port}" for name, port in sorted(ports.items()))),
        ("Requests", _requests(details)),
        ("Failures", f"{details['failures']} in a row" if details.get("failures") else ""),
        ("Start", _phases(measured)),
        ("Peak memory", _peaks(measured)),
        ("Throughput", f"up to {rate:.1f} tokens/s" if rate is not None else ""),
        ("KV events", "published" if details.get("kv_events") else ""),
        ("Log files", ", ".join(_log(each, now) for each in details.get("logs", []))),
    ]
    return [(name, value) for name, value in facts if value]


def history_grid(details: Details, now: float) -> Grid:
    """Since the agent's start."""
    columns = (Column("WHEN"), Column("AGO", "right", spare=1), Column("STATE"), Column("REASON", fold=True))
    rows = [
        (_time(each["at"]), age(each["at"], now), each.get("state", ""), each.get("reason") or "-")
        for each in details.get("history", [])
    ]
    return Grid(columns, rows, "")


def processes_grid(details: Details) -> Grid:
    columns = (Column("PID", "right"), Column("PARENT", "right", spare=1), Column("MEMORY", "right"), Column("PROGRAM"))
    rows = [
        (str(each.get("pid", "")), str(each.get("parent", "")), size(each.get("rss_bytes")), each.get("name", ""))
        for each in details.get("processes", [])
    ]
    return Grid(columns, rows, "")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _requests(details: Details) -> str:
    if not details.get("processes"):
        return ""
    connections, requests = details.get("connections", 0), details.get("requests")
    opened = f"{connections} connection{'' if connections == 1 else 's'} open"
    return opened if requests is None else f"{requests} running or waiting, {opened}"


def _phases(measured: Mapping[str, Any]) -> str:
    known = [(word, measured[name]) for name, word in _PHASES if measured.get(name) is not None]
    if not known:
        return ""
    return f"{duration(sum(seconds for _, seconds in known))}: " + ", ".join(f"{word} {duration(each)}" for word, each in known)


def _peaks(measured: Mapping[str, Any]) -> str:
    host = [f"{size(measured['peak_rss_bytes'])} of the host's"] if measured.get("peak_rss_bytes") else []
    gpus = [f"{size(held)} of {gpu}'s" for gpu, held in sorted((measured.get("peak_gpu_bytes") or {}).items())]
    return ", ".join([*host, *gpus])


def _log(log: Mapping[str, Any], now: float) -> str:
    return f"{log.get('name', '')} ({size(log.get('bytes'))}, {age(log.get('modified_at'), now)} ago)"
