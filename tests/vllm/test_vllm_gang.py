"""One replica of a real vLLM over two nodes, each in a network of its own: served through the router, and started again as a
whole when a part of it dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from llmgw_testing.netns import Hosts
from llmgw_testing.real_engines import Served, Site
from llmgw_testing.vllm_real import START, tiny_spec
from llmgw_testing.wait import wait_until

MODEL = "org/wide"


@dataclass
class Wide:
    site: Site
    hosts: Hosts


@pytest.fixture(scope="module")
def wide(served: Served) -> Iterator[Wide]:
    """Two nodes without a way to the internet: they install what the first node has left in the cache."""
    site = served.site
    with Hosts("w1", "w2") as hosts:
        nodes = []
        for name in ("w1", "w2"):
            inside = ["env", "UV_OFFLINE=1", *hosts.inside(name)]
            nodes.append(site.add_node(name, "wide", inside=inside, address=hosts.address(name)))
        spec = tiny_spec(MODEL, site.source)
        (profile,) = spec["profiles"]
        profile |= {"nodes": 2, "node_selector": {"kind": "wide"}}
        # Both nodes are this machine: by themselves they would take the same core.
        profile["env"]["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        site.stack.apply(spec, "--no-wait")
        yield Wide(site, hosts)
        site.stack.ctl("model", "remove", MODEL)
        wait_until(lambda: not parts(site), within=60, what="all parts of the replica to be gone")
        for node in nodes:
            assert node.stop() == 0


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
        assert replica["state"] != "Rejected" and "cannot be installed" not in replica["reason"], replica["reason"]
        return replica if replica["state"] == "Ready" and replica["restarts"] >= restarts else None

    found = wait_until(look, within=3 * START, what="the replica over two nodes to be ready", every=0.3)
    assert found is not None
    return found


def test_two_nodes_serve_as_one_and_start_again_as_one(wide: Wide) -> None:
    site, hosts = wide.site, wide.hosts
    first = ready(site, 0)
    text = site.ask(MODEL)
    before = parts(site)
    assert sorted(before) == [0, 1]
    addresses = sorted(map(hosts.address, ("w1", "w2")))
    lines = {rank: " ".join(process.cmdline()) for rank, process in before.items()}
    environments = {rank: process.environ() for rank, process in before.items()}
    head = environments[0]["VLLM_HOST_IP"]
    assert sorted(each["VLLM_HOST_IP"] for each in environments.values()) == addresses
    for rank in (0, 1):
        assert f"--nnodes 2 --node-rank {rank} --master-addr {head} " in lines[rank]
        # As the agent found it in its host's network.
        assert environments[rank]["GLOO_SOCKET_IFNAME"] == "fab0"
    assert ["--headless" in lines[rank] for rank in (0, 1)] == [False, True]

    os.kill(before[1].pid, signal.SIGKILL)

    def all_new() -> bool:
        now = parts(site)
        return sorted(now) == [0, 1] and not {each.pid for each in now.values()} & {each.pid for each in before.values()}

    wait_until(all_new, within=START, what="both nodes to start the engine anew", every=0.3)
    second = ready(site, first["restarts"] + 1)
    assert second["pid"] != first["pid"]
    # The same weights give the same text.
    assert site.ask(MODEL) == text
