"""Hardware that breaks under a running cluster: real programs, GPUs simulated below the real NVML binding."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.stack import Stack, fake_model, request
from llmgw_testing.wait import wait_until

#: Seconds: a sample a second, a watch, a plan; generous for a machine that is busy with other tests.
SOON = 30.0


def gpu_model(name: str) -> dict[str, Any]:
    spec = fake_model(name)
    spec["profiles"][0]["gpus"] = 1
    spec["drain_seconds"] = 1
    return spec


def quarantines(stack: Stack) -> dict[str, str]:
    """By UUID, as the coordinator knows them."""
    nodes = stack.admin("/admin/v1/nodes")["nodes"]
    return {gpu["uuid"]: gpu["quarantine"] for node in nodes for gpu in (node["inventory"] or {})["gpus"] if gpu["quarantine"]}


def test_a_gpu_is_lost_and_another_reports_an_xid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(monkeypatch, tmp_path, machine.l40s(4))
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent(metrics={"listen": f"127.0.0.1:{port}"})
        stack.apply(gpu_model("a"))
        stack.apply(gpu_model("b"))
        (first,), (other,) = stack.ready("a", 1), stack.ready("b", 1)
        (lost,), (kept,) = first["gpus"], other["gpus"]
        assert lost != kept
        index = {machine.uuid(each): each for each in range(4)}

        nvml.add(f"gpu{index[lost]}.lost = 1")

        wait_until(lambda: list(quarantines(stack)) == [lost], within=SOON, what="the lost GPU to be quarantined")
        listed = {gpu["uuid"]: gpu for gpu in stack.ask_ctl("gpu", "list")}
        assert "gpu-lost" in listed[lost]["quarantine"]
        assert [gpu["quarantine"] for uuid, gpu in listed.items() if uuid != lost] == [None] * 3
        moved = wait_until(
            lambda: [each for each in stack.replicas("a") if each["gpus"] != [lost] and each["state"] == "Ready"],
            within=SOON,
            what="the replica to move to another GPU",
        )
        assert moved[0]["gpus"][0] not in (lost, kept)
        (same,) = stack.ready("b", 1)
        assert (same["pid"], same["gpus"], same["restarts"]) == (other["pid"], [kept], 0)

        (spare,) = set(index) - {lost, kept, *moved[0]["gpus"]}
        nvml.add(f"gpu{index[spare]}.xid = 1:48")
        wait_until(lambda: set(quarantines(stack)) == {lost, spare}, within=SOON, what="the GPU with an XID to be set aside")
        assert "48" in quarantines(stack)[spare]

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        assert f'llmgw_gpu_xid_errors_total{{class="L40S-48GB",gpu="{spare}"' in page
        assert 'llmgw_agent_shards{state="Ready"} 2.0' in page
        assert "llmgw_agent_store_connected 1.0" in page
        assert request(f"http://127.0.0.1:{port}/healthz") == (200, b"ok\n")

        # The operator has looked after it.
        done = stack.ctl("gpu", "lift", spare)
        assert done.stdout == f"{spare} on n1 may be used\n"
        wait_until(lambda: list(quarantines(stack)) == [lost], within=SOON, what="the quarantine to be lifted")


def test_operators_set_aside_cap_and_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.l40s(2))
    one, two = machine.uuid(0), machine.uuid(1)
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent("n1", metrics={"listen": None})
        stack.environment.pop("FAKE_NVML")
        stack.environment.pop("LD_LIBRARY_PATH")
        stack.agent("n2", metrics={"listen": None})
        stack.apply(gpu_model("a"))
        (replica,) = stack.ready("a", 1)
        (used,) = replica["gpus"]

        # The GPU in use is set aside: its replica moves to the other one.
        stack.ctl("gpu", "hold", used, "--reason", "fan is loud")
        wait_until(lambda: "fan is loud" in quarantines(stack).get(used, ""), within=SOON, what="the GPU to be set aside")
        wait_until(
            lambda: [each for each in stack.replicas("a") if each["gpus"] != [used] and each["state"] == "Ready"],
            within=SOON,
            what="the replica to leave the GPU",
        )
        assert stack.ask_ctl("gpu", "lift", used[:12]) == {"node": "n1", "subject": used, "quarantine": None}

        assert stack.ctl("gpu", "power", one, "200").stdout == f"{one}: power limit 200 W\n"
        assert "100 to 350 W; choose one inside" in stack.ctl("gpu", "power", two, "20", expect=2).stderr
        assert stack.ctl("gpu", "power", one, "default").stdout == f"{one}: power limit 350 W\n"
        assert "no GPU or port 'mlx5_9:1'" in stack.ctl("gpu", "hold", "mlx5_9:1", "--node", "n1", expect=4).stderr

        refused = stack.ctl("node", "bandwidth", "n1", "n2", "--seconds", "0.3", expect=1).stderr
        assert "drain it first, or force the test" in refused
        refused = stack.ctl("node", "bandwidth", "n2", "n1", "--seconds", "0.3", expect=1).stderr
        assert "node n1: " in refused
        assert "drain it first, or force the test" in refused
        found = stack.ask_ctl("node", "bandwidth", "n2", "n1", "--force", "--seconds", "0.3")
        assert (found["node"], found["peer"], found["method"]) == ("n2", "n1", "tcp")
        assert found["gigabits_per_second"] > 0.01
        # The other end is free again at once.
        assert "Gb/s over TCP" in stack.ctl("node", "bandwidth", "n1", "n2", "--force", "--seconds", "0.2").stdout
        assert "not alive" in stack.ctl("node", "bandwidth", "n1", "n9", "--force", expect=3).stderr


def test_a_driver_that_hangs_harms_neither_agent_nor_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(monkeypatch, tmp_path, machine.l40s(2))
    with Stack(tmp_path) as stack:
        stack.coordinator()
        agent = stack.agent(metrics={"listen": None})
        stack.apply(fake_model("a"))
        (before,) = stack.ready("a", 1)
        nvml.add("gpu0.hang = 1", "gpu1.hang = 1")
        wait_until(lambda: len(quarantines(stack)) == 2, within=SOON, what="GPUs that hang to be set aside")
        assert agent.running
        assert stack.ready("a", 1) == [before]
        problems = stack.admin("/admin/v1/status")["problems"]
        assert sum("telemetry-hung" in problem for problem in problems) == 2
