"""llama.cpp over several nodes: workers lend their devices, the head's llama-server uses them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.engines.base import Checked, Gang, Host, Located, Member, Place
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.llamacpp_rpc import find_rpc_server
from llmgw_agent.errors import RejectedError
from llmgw_agent.shard.exits import classify
from llmgw_proto.records import AssignmentRecord, ShardRole
from llmgw_testing import fake_llama
from llmgw_testing.agent_harness import WITHIN
from llmgw_testing.gang import REPLICA, gang
from llmgw_testing.llama_server import weights
from llmgw_testing.wait import eventually

MEMBERS = (Member("a", "10.0.0.1", 0), Member("b", "10.0.0.2", 2000), Member("c", "10.0.0.3", 3000))


def wish(**fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": REPLICA, "model": "m", "epoch": 1, "engine": "llamacpp"}
    return AssignmentRecord(**(data | {"source": f"file:{weights()}", "peers": ["a", "b", "c"], "drain_seconds": 1.0} | fields))


def place(rank: int, members: tuple[Member, ...] = MEMBERS) -> Place:
    return Place("127.0.0.1", 4711, "K", Gang(rank, 1, members), {"NCCL_SOCKET_IFNAME": "=eth0"})


def test_the_head_uses_the_rpc_servers_of_all_others(tmp_path: Path) -> None:
    server = fake_llama.install(tmp_path)
    located = Located("1", "", (str(server),))
    launch = LlamaCpp().launch(wish(), located, Checked(weights(), 0), place(0))
    assert launch.argv[launch.argv.index("--rpc") + 1] == "10.0.0.2:2000,10.0.0.3:3000"
    assert "--rpc" not in LlamaCpp().launch(wish(peers=[]), located, Checked(weights(), 0), Place("h", 1, "K")).argv


def test_a_worker_lends_its_devices_and_needs_no_weights(tmp_path: Path) -> None:
    server = fake_llama.install(tmp_path)
    driver = LlamaCpp(str(server))
    assignment = wish(role=ShardRole.WORKER, rank=2, gpus=["GPU-x"], memory_bytes=5, env={"GGML_CUDA_P2P": "1"})
    checked = driver.check(assignment, Host(memory_limit=10, memory_free=10))
    assert (checked.weights, checked.memory_bytes) == (None, 5)
    located = driver.locate()
    assert located is not None
    launch = driver.launch(assignment, located, checked, place(2))
    assert launch.argv == [str(tmp_path / "ggml-rpc-server"), "--host", "10.0.0.3", "--port", "3000"]
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "GPU-x"
    assert launch.environment["GGML_CUDA_P2P"] == "1"
    assert "LLAMA_API_KEY" not in launch.environment, "it has no use for the key"


def test_the_rpc_server_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(RejectedError, match=r"built with GGML_RPC, or name the program in engines\.llama_rpc_server"):
        find_rpc_server(None, "/no/llama-server")
    with pytest.raises(RejectedError, match=r"engines\.llama_rpc_server /no/rpc: no such program"):
        find_rpc_server("/no/rpc", "/no/llama-server")
    beside = fake_llama.install(tmp_path / "beside")
    fake_llama.install(tmp_path / "bin")
    assert find_rpc_server(None, "/no/llama-server") == str(tmp_path / "bin/ggml-rpc-server")
    assert find_rpc_server(None, str(beside)) == str(tmp_path / "beside/ggml-rpc-server")
    assert find_rpc_server(str(tmp_path / "bin/ggml-rpc-server"), str(beside)) == str(tmp_path / "bin/ggml-rpc-server")


def test_what_cannot_be_is_rejected() -> None:
    package = LlamaCpp()._locate_package()
    assert package is not None
    with pytest.raises(RejectedError, match="the xllamacpp package cannot use other nodes"):
        LlamaCpp().launch(wish(), package, Checked(weights(), 0), place(0))
    six = (MEMBERS[0], Member("b", "fd00::2", 2000))
    with pytest.raises(RejectedError, match="cannot use the IPv6 address fd00::2 of node b"):
        LlamaCpp().launch(wish(), Located("1", "", ("/l/llama-server",)), Checked(weights(), 0), place(0, six))


def test_weights_too_big_for_one_node_may_fit_on_several() -> None:
    small = Host(memory_limit=60 << 20, memory_free=60 << 20)
    with pytest.raises(RejectedError, match="use a smaller quantisation"):
        LlamaCpp().check(wish(peers=[]), small)
    whole = LlamaCpp().check(wish(peers=[]), Host(1 << 40, 1 << 40)).memory_bytes
    assert LlamaCpp().check(wish(), small).memory_bytes < whole


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Failed to create server socket", "the port was taken, or the address is not this node's"),
        ("/src/ggml-rpc.cpp:547: Failed to connect to 10.0.0.2:2000", "could not be reached at 10.0.0.2:2000"),
        ("ggml-rpc.cpp:566: Remote RPC server crashed or returned malformed response", "the RPC server of another node ended"),
    ],
)
def test_what_the_log_says_is_understood(line: str, cause: str) -> None:
    assert cause in classify(-6, [line], LlamaCpp.patterns, was_ready=False).text


def test_workers_listen_before_the_head_starts_and_all_restart_together(tmp_path: Path) -> None:
    async def body() -> None:
        server = fake_llama.install(tmp_path / "bin")
        async with gang(tmp_path, 3, engines={"llama_server": str(server)}) as nodes:
            await nodes.wish(wish())
            first = await nodes.ready(1)
            written = Path(first[0].log_path).read_text
            await eventually(lambda: "fake llama-server with 2 other nodes" in written(), within=WITHIN, what="the head's log")
            log = written()
            for record in first[1:]:
                assert record.gang is not None
                assert record.port == record.gang.port
                assert f"{record.gang.address}:{record.gang.port}" in log
            # The head would not notice: its health endpoint goes on answering.
            assert first[2].pid is not None
            os.kill(first[2].pid, signal.SIGKILL)
            second = await nodes.ready(2)
            assert not {record.pid for record in first} & {record.pid for record in second}
            await nodes.unwish()
            await nodes.nothing_left()

    asyncio.run(body())
