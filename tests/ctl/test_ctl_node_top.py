"""`llmgwctl node top` as a terminal of 80 columns shows it, and nodes with several versions of an engine."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from llmgw_ctl.node_top import _screen
from llmgw_ctl.views.nodes import nodes_grid


def shown(**sample: Any) -> str:
    out = io.StringIO()
    both = {"node": "n1", "load1": 0.5, "memory_available_bytes": 1 << 30, "gpus": [], "shards": []}
    Console(file=out, width=80, force_terminal=True, color_system=None).print(_screen(both | sample, 80))
    return out.getvalue()


def test_a_node_without_replicas() -> None:
    assert [line.rstrip() for line in shown().splitlines()] == [
        "n1: load 0.50, 1.0 GiB of memory available",
        "No replicas on this node.",
    ]


def test_a_gpu_in_quarantine_keeps_its_name() -> None:
    uuid = "GPU-6e3a1f0c-1111-2222-3333-444455556666"
    gpu = {"uuid": uuid, "utilization": 97, "memory_used_bytes": 79 << 30, "memory_total_bytes": 80 << 30}
    shard = {"shard": "a-model-with-quite-a-long-name-x7k2p.0", "model": "org/a-model-with-quite-a-long-name", "state": "Ready"}
    text = shown(gpus=[gpu, gpu | {"quarantine": "ECC: uncorrectable errors in rows that cannot be remapped"}], shards=[shard])
    assert text.count(uuid) == 2
    assert shard["shard"] in text
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_an_engine_with_several_versions_is_listed_once() -> None:
    engines = [{"name": "llamacpp", "version": "1"}, {"name": "llamacpp", "version": "2"}, {"name": "command"}]
    (row,) = nodes_grid([{"name": "n1", "alive": True, "inventory": {"engines": engines}}]).rows
    assert "llamacpp, command" in row
