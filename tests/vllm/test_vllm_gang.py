"""One replica of a real vLLM over two nodes: served through the router, and started again as a whole when a part of it dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from llmgw_testing.real_engines import Site
from llmgw_testing.vllm_real import START, tiny_spec
from llmgw_testing.wait import wait_until

MODEL = "org/wide"


@pytest.fixture(scope="module")
def wide(site: Site) -> Iterator[Site]:
    site.add_node("n2", node={"name": "n2", "address": "127.0.0.2"})
    spec = tiny_spec(MODEL, site.source)
    (profile,) = spec["profiles"]
    profile["nodes"] = 2
    # Both nodes are this host: by themselves they would take the same core.
    profile["env"]["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    site.stack.apply(spec, "--no-wait")
    yield site
    site.stack.ctl("model", "remove", MODEL)
    wait_until(lambda: not parts(site), within=60, what="all parts of the replica to be gone")


def parts(site: Site) -> dict[int, psutil.Process]:
    """The first process of each rank."""
    found: dict[int, psutil.Process] = {}
    for pid in site.stack.engines():
        try:
            process = psutil.Process(pid)
            shard = process.environ()["LLMGW_SHARD"]
            first = process.parent()
            if shard.startswith("org-wide") and (first is None or first.environ().get("LLMGW_SHARD") != shard):
                found[int(shard.rpartition(".")[2])] = process
        except psutil.Error:
            continue
    return found


def ready(site: Site, restarts: int) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        (replica,) = site.stack.replicas(MODEL) or [{"state": "", "reason": ""}]
        assert replica["state"] != "Rejected", replica["reason"]
        return replica if replica["state"] == "Ready" and replica["restarts"] >= restarts else None

    found = wait_until(look, within=3 * START, what="the replica over two nodes to be ready", every=0.3)
    assert found is not None
    return found


def test_two_nodes_serve_as_one_and_start_again_as_one(wide: Site) -> None:
    first = ready(wide, 0)
    text = wide.ask(MODEL)
    before = parts(wide)
    assert sorted(before) == [0, 1]
    lines = {rank: process.cmdline() for rank, process in before.items()}
    for rank, line in lines.items():
        assert f"--nnodes 2 --node-rank {rank}" in " ".join(line)
        environment = before[rank].environ()
        assert environment["VLLM_HOST_IP"] in ("127.0.0.1", "127.0.0.2")
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert ["--headless" in lines[rank] for rank in (0, 1)] == [False, True]

    os.kill(before[1].pid, signal.SIGKILL)

    def all_new() -> bool:
        now = parts(wide)
        return sorted(now) == [0, 1] and not {each.pid for each in now.values()} & {each.pid for each in before.values()}

    wait_until(all_new, within=START, what="both nodes to start the engine anew", every=0.3)
    second = ready(wide, first["restarts"] + 1)
    assert second["pid"] != first["pid"]
    # The same weights give the same text.
    assert wide.ask(MODEL) == text
