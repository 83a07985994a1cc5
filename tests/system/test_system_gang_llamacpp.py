"""A replica over two nodes in the whole of llmgw: from ``model apply`` to answers, through what can end a part of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from llmgw_testing import fake_llama
from llmgw_testing.llama_server import weights
from llmgw_testing.stack import Stack, chat
from llmgw_testing.wait import wait_until

WITHIN = 90.0


def test_a_replica_over_two_nodes_is_served_survives_and_is_removed(tmp_path: Path) -> None:
    server = fake_llama.install(tmp_path / "bin")
    engines = {"llama_server": str(server), "gang": {"link_seconds": 0.1}}
    with Stack(tmp_path / "stack") as stack:
        stack.coordinator()
        for name in ("n1", "n2"):
            stack.agent(name, engines=engines, restart={"first_delay": 0.2})
        router = stack.router()
        wait_until(lambda: len(stack.admin("/admin/v1/nodes")["nodes"]) == 2, within=WITHIN, what="two nodes")
        profile = {"engine": "llamacpp", "nodes": 2, "memory": "64MiB"}
        stack.apply({"name": "big", "source": f"file:{weights()}", "profiles": [profile], "drain_seconds": 2})
        stack.ready("big", 1, within=WITHIN)

        def answers() -> bool:
            return chat(router.url, "big")[0] == 200

        wait_until(answers, within=WITHIN, what="an answer through the router")
        parts = shards(stack)
        assert {rank: each["node"] for rank, each in parts.items()}.keys() == {0, 1}
        assert parts[0]["node"] != parts[1]["node"]

        # The agents of both nodes are killed and come back: nothing of the replica changes.
        for name in ("n1", "n2"):
            stack.daemons[name].kill()
            stack.daemons[name].start()
        wait_until(lambda: adopted(stack) == {"n1": 1, "n2": 1}, within=WITHIN, what="both agents to have found their engines")
        wait_until(answers, within=WITHIN, what="an answer all the same")
        assert {rank: each["pid"] for rank, each in shards(stack).items()} == {rank: parts[rank]["pid"] for rank in (0, 1)}

        # The part that serves nobody dies: all of it starts anew.
        os.kill(parts[1]["pid"], signal.SIGKILL)

        def anew() -> bool:
            now = shards(stack)
            pids = {each["pid"] for each in now.values()}
            settled = len(now) == 2 and all(each["state"] == "Ready" for each in now.values())
            return settled and not pids & {each["pid"] for each in parts.values()}

        wait_until(anew, within=WITHIN, what="both parts to be Ready with new processes")
        wait_until(answers, within=WITHIN, what="an answer again")

        stack.ctl("model", "remove", "big")
        wait_until(lambda: not stack.engines() and not stack.replicas("big"), within=WITHIN, what="nothing of it to be left")


def adopted(stack: Stack) -> dict[str, int]:
    return {name: stack.daemons[name].log().count("engine adopted") for name in ("n1", "n2")}


def shards(stack: Stack) -> dict[int, dict[str, Any]]:
    """The parts of the only replica by rank, as the admin API shows them."""
    return {each["rank"]: each for replica in stack.replicas("big") for each in replica["shards"]}
