"""``llmgwctl node top``: a node's figures, again and again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmgw_ctl.client import AdminClient
from llmgw_ctl.errors import BadInputError
from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import parse_duration, size
from llmgw_ctl.output import Format

if TYPE_CHECKING:
    from rich.console import Group

    from llmgw_ctl.session import Session

_LEAST, _MOST = 0.2, 3600.0


async def watch(session: Session, client: AdminClient, node: str, every: str, count: int) -> None:
    """Until ``count`` looks are over, or for ever with 0.

    Raises:
        BadInputError: ``every`` makes no sense.
    """
    seconds = parse_duration(every)
    if not _LEAST <= seconds <= _MOST:
        raise BadInputError(f"--every {every} is not between 0.2s and 1h", "write for example 2s")
    samples = client.telemetry(node, every=seconds, count=count)
    if not session.for_people:
        async for sample in samples:
            _print(sample, session.format)
        return
    if not session.terminal.out.is_terminal:
        async for sample in samples:
            session.terminal.line(headline(sample))
            for grid in grids(sample):
                sys.stdout.write(grid.plain())
            sys.stdout.flush()
        return
    from rich.live import Live

    with Live(console=session.terminal.out, auto_refresh=False) as live:
        async for sample in samples:
            live.update(_screen(sample, session.terminal.out.width), refresh=True)


def _print(sample: Mapping[str, Any], form: Format) -> None:
    if form is Format.YAML:
        import yaml

        sys.stdout.write("---\n" + yaml.safe_dump(dict(sample), sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(json.dumps(sample, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def headline(sample: Mapping[str, Any]) -> str:
    available = size(sample.get("memory_available_bytes"))
    return f"{sample.get('node', '')}: load {sample.get('load1', 0.0):.2f}, {available} of memory available"


def grids(sample: Mapping[str, Any]) -> list[Grid]:
    """GPUs, if there are some, and replicas."""
    found = [_gpus(sample)] if sample.get("gpus") else []
    return [*found, _shards(sample)]


def _gpus(sample: Mapping[str, Any]) -> Grid:
    columns = (
        Column("GPU"),
        Column("USE", "right"),
        Column("MEMORY", "right"),
        Column("POWER", "right", spare=1),
        Column("TEMP", "right", spare=2),
        Column("CLOCK", "right", spare=3),
        Column("QUARANTINE", fold=True),
    )
    rows = [
        (
            each.get("uuid", ""),
            _figure(each.get("utilization"), "{:.0f} %"),
            f"{size(each.get('memory_used_bytes'))} / {size(each.get('memory_total_bytes'))}",
            f"{_figure(each.get('power'), '{:.0f}')} / {_figure(each.get('power_limit'), '{:.0f} W')}",
            _figure(each.get("temperature"), "{:.0f} C"),
            _figure(each.get("clock_sm"), "{:.0f} MHz"),
            each.get("quarantine") or "-",
        )
        for each in sample.get("gpus", [])
    ]
    return Grid(columns, rows, "")


def _shards(sample: Mapping[str, Any]) -> Grid:
    columns = (
        Column("SHARD"),
        Column("MODEL", spare=1),
        Column("STATE"),
        Column("REQUESTS", "right"),
        Column("TOKENS/S", "right"),
        Column("MEMORY", "right"),
        Column("GPU MEMORY", "right", spare=2),
    )
    rows = [
        (
            each.get("shard", ""),
            each.get("model", ""),
            "Drained" if each.get("drained") and each.get("state") == "Ready" else each.get("state", ""),
            _figure(each.get("requests"), "{:.0f}"),
            _figure(each.get("tokens_per_second"), "{:.1f}"),
            size(each.get("rss_bytes")),
            size(sum(each["gpu_bytes"].values())) if each.get("gpu_bytes") else "-",
        )
        for each in sample.get("shards", [])
    ]
    return Grid(columns, rows, "No replicas on this node.")


def _screen(sample: Mapping[str, Any], width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    shown = (grid.fitting(width).rich() if grid.rows else Text(grid.empty) for grid in grids(sample))
    return Group(Text(headline(sample)), *shown)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
