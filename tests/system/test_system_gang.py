"""A replica over two of three nodes, from ``llmgwctl model serve`` over the loss of a node to nothing left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from llmgw_testing import fake_llama
from llmgw_testing.llama_server import weights
from llmgw_testing.stack import Stack
from llmgw_testing.wait import wait_until

LONG = 120.0
"""Seconds that a step may take on a loaded machine."""


def test_served_asked_moved_repaired_and_removed(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        server = str(fake_llama.install(tmp_path / "bin"))
        stack.coordinator(node_grace=3)
        for name in ("n1", "n2", "n3"):
            stack.agent(name, engines={"llama_server": server}, metrics={"listen": None})
        client = stack.client(stack.router())

        def ask() -> str | None:
            answer = client.chat.completions.create(model="pair", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
            return answer.choices[0].message.content

        def ready(epoch: int) -> dict[str, Any] | None:
            found = stack.admin("/admin/v1/replicas")["replicas"]
            fits = found and found[0]["epoch"] == epoch and found[0]["state"] == "Ready" and found[0]["url"]
            return found[0] if fits else None

        def serves(epoch: int) -> dict[str, Any]:
            wait_until(lambda: ready(epoch) is not None, within=LONG, what=f"the replica to be ready in epoch {epoch}")
            wait_until(lambda: answered(ask), within=LONG, what="an answer through the router")
            found = ready(epoch)
            assert found is not None
            return found

        wait_until(lambda: len(stack.admin("/admin/v1/nodes")["nodes"]) == 3, within=LONG, what="three nodes")
        stack.ctl("model", "serve", "pair", str(weights()), "--nodes", "2", "--memory", "256MiB", "--timeout", "2m")
        first = serves(1)
        head, worker = first["nodes"]
        assert [(each["rank"], each["role"], each["phase"]) for each in first["shards"]] == [
            (0, "head", "ready"),
            (1, "worker", "ready"),
        ]
        assert f"{head} + {worker}" in stack.ctl("replica", "list").stdout
        assert "Starting RPC server" in stack.ctl("replica", "logs", first["id"], "--rank", "1").stdout
        assert stack.admin(f"/admin/v1/nodes/{worker}")["replicas"] == [first["id"]]

        stack.daemons[worker].kill()
        moved = serves(2)
        assert moved["id"] == first["id"]
        assert moved["nodes"][0] == head
        assert worker not in moved["nodes"]

        stack.etcd.ctl("del", f"/llmgw/v1/assignments/{moved['nodes'][1]}/{first['id']}.1")
        repaired = serves(3)
        assert repaired["nodes"] == moved["nodes"]

        stack.daemons[worker].start()
        stack.ctl("model", "remove", "pair", "--timeout", "2m")
        wait_until(lambda: not stack.engines(), within=LONG, what="all engines to be gone, also what the killed agent had left")


def answered(ask: Callable[[], str | None]) -> bool:
    try:
        return bool(ask())
    except openai.APIError:
        return False
