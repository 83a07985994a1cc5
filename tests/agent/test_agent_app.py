"""One agent, real engine processes, a store in memory: from a wish to an endpoint, and back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_agent.engines.base import Driver, Located
from llmgw_agent.install.progress import Progress
from llmgw_agent.process.ports import is_free
from llmgw_agent.shard import launch, runner, supervisor
from llmgw_agent.shard.context import Context
from llmgw_base.config import ConfigError
from llmgw_base.etcd.api import Put
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import AliveRecord, AssignmentRecord, EndpointRecord, InventoryRecord, NodeStatusRecord, ShardRecord
from llmgw_testing.agent_harness import SECRET, WITHIN, AgentHarness, fake_wish
from llmgw_testing.follower import Follower
from llmgw_testing.wait import eventually


async def ask(endpoint: EndpointRecord, key: str, **fields: Any) -> tuple[int, bytes]:
    body = {"model": endpoint.served_name, "messages": [{"role": "user", "content": "x"}], **fields}
    async with aiohttp.ClientSession() as session:
        url = endpoint.url + "/v1/chat/completions"
        async with session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            return answer.status, await answer.read()


def test_two_wishes_become_endpoints_and_their_withdrawal_leaves_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m", policy="least"))
            await agent.wish(fake_wish("org/n", shard="n-1.0", replica="n-1"))
            record, other = await agent.shard("m-1.0", "Ready"), await agent.shard("n-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            assert endpoint.url == f"http://127.0.0.1:{record.port}"
            assert (endpoint.served_name, endpoint.policy, endpoint.draining) == ("m", "least", False)
            assert endpoint.capabilities == ["chat", "completions"]
            assert agent.engines("m-1.0") == [record.pid]
            key = engine_key(SECRET, "m-1", 1)
            assert (await ask(endpoint, key))[0] == 200
            assert (await ask(endpoint, "wrong"))[0] == 401
            assert record.timings.start_to_listen is not None
            assert record.timings.listen_to_ready is not None
            assert record.peak_rss_bytes > 1_000_000

            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            assert agent.engines("n-1.0") == [other.pid], "the other model is not touched"
            await agent.unwish("n-1.0")
            await agent.nothing_left("n-1.0", "n-1")
            for port in (record.port, other.port):
                assert port is not None
                assert is_free("127.0.0.1", port)
            assert files(agent.config.state_dir / "shards") == []

    asyncio.run(body())


def test_the_node_tells_what_it_is(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, node={"labels": {"rack": "r1"}}) as agent:
            alive_key = keyspace.alive(agent.node)
            alive = await eventually(lambda: agent.store.get(alive_key), within=WITHIN, what="alive")
            assert alive is not None
            assert alive.lease != 0
            assert AliveRecord.decode(alive.value).pid == os.getpid()
            found = await agent.store.get(keyspace.inventory(agent.node))
            assert found is not None
            inventory = InventoryRecord.decode(found.value)
            assert inventory.labels == {"rack": "r1"}
            assert {engine.name for engine in inventory.engines} == {"llamacpp", "command"}
            assert inventory.memory.total_bytes > 1 << 28
            status_key = keyspace.node_status(agent.node)
            status = await eventually(lambda: agent.store.get(status_key), within=WITHIN, what="status")
            assert status is not None
            assert NodeStatusRecord.decode(status.value).disks[0].free_bytes > 0

    asyncio.run(body())


def test_a_killed_engine_leaves_the_table_at_once_and_comes_back(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            assert before.pid is not None
            os.kill(before.pid, signal.SIGKILL)
            await eventually(lambda: no_endpoint(agent), within=1.0, what="the endpoint to go", every=0.01)
            after = await agent.shard("m-1.0", "Ready", restarts=1)
            assert after.pid != before.pid
            assert after.port != before.port, "a port that was just given back rests"
            assert agent.engines("m-1.0") == [after.pid]

    asyncio.run(body())


def test_a_crash_loop_ends_with_an_open_breaker_and_the_first_log_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, restart={"attempts": 3, "first_delay": 0.05, "longest_delay": 0.1}) as agent:
            await agent.wish(fake_wish(script="exit-1"))
            record = await agent.shard("m-1.0", "Failed", restarts=3, next_attempt_at=None)
            assert "the engine exited with 1: memory ran out. Give the engine smaller limits" in record.reason
            assert "It failed 3 times in a row, so the breaker is open" in record.reason
            assert agent.processes() == []
            pinned = (agent.config.state_dir / "logs/m-1.0/first-failure.log").read_text()
            assert pinned.startswith("[llmgw] first failure of epoch 1: the engine exited with 1")
            assert "CUDA error: out of memory (made up)" in pinned
            log = lines_of(record)
            assert len([line for line in log if line.startswith("[llmgw] attempt ")]) == 3
            assert engine_key(SECRET, "m-1", 1) not in "".join(log), "the key is not written into the log"

            await agent.wish(fake_wish(script="exit-1", generation=1))
            again = await agent.shard("m-1.0", "Failed", restarts=6, next_attempt_at=None)
            assert again.generation == 1, "applying the model again is a reason to try again"

    asyncio.run(body())


def test_a_crash_never_looks_like_an_open_breaker(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            AgentHarness(tmp_path, restart={"attempts": 3, "first_delay": 0.05, "longest_delay": 0.1}) as agent,
            Follower(agent.store.watch(keyspace.shards_of(agent.node))) as follower,
        ):
            await agent.wish(fake_wish(script="exit-1"))
            await agent.shard("m-1.0", "Failed", restarts=3, next_attempt_at=None)
            told = [ShardRecord.decode(put.value) for put in follower.all(Put)]
            given_up = [record for record in told if record.state == "Failed" and record.next_attempt_at is None]
            assert given_up
            assert all("breaker is open" in record.reason for record in given_up)

    asyncio.run(body())


def test_an_engine_that_is_never_ready_fails_in_time(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, restart={"attempts": 1}, engines={"start_seconds": 2}) as agent:
            await agent.wish(fake_wish("m", script="never-ready"))
            await agent.wish(fake_wish("n", script="no-listen"))
            slow = await agent.shard("m-1.0", "Failed", next_attempt_at=None, restarts=1)
            assert "the engine was not ready within 2 s: /health answered 503" in slow.reason
            deaf = await agent.shard("n-1.0", "Failed", next_attempt_at=None, restarts=1)
            assert "it never opened its port" in deaf.reason
            assert agent.processes() == []

    asyncio.run(body())


def test_an_engine_that_is_healthy_and_makes_no_token_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, restart={"attempts": 1}) as agent:
            await agent.wish(fake_wish(script="wedge"))
            record = await agent.shard("m-1.0", "Failed", next_attempt_at=None, restarts=1)
            assert "says that it is healthy, but POST /v1/chat/completions: no answer within 0.5 s" in record.reason
            assert await agent.endpoint("m-1") is None

    monkeypatch.setattr("llmgw_agent.engines.probe.FIRST_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("llmgw_agent.shard.serve.GENERATION_SECONDS", 0.5)
    asyncio.run(body())


REJECTED: dict[str, tuple[AssignmentRecord, str]] = {
    "missing": (fake_wish("a", engine="llamacpp", source="/no/such.gguf"), "weights /no/such.gguf: no such file on this node"),
    "not-gguf": (fake_wish("b", engine="llamacpp", source="/etc/os-release"), "/etc/os-release is not a GGUF file"),
    "folder": (fake_wish("c", engine="llamacpp", source="file:///etc"), "weights /etc is a folder"),
    "reserved": (
        fake_wish("d", engine="llamacpp", source="/x", args=["--port", "1"]),
        "--port is reserved for engine llamacpp",
    ),
    "engine": (
        fake_wish("e", engine="warp"),
        "engine 'warp' is unknown to this agent; use one of llamacpp, vllm, sglang, command",
    ),
    "program": (fake_wish("f", command=["no-such-program", "{port}"]), "program 'no-such-program' is not on this node"),
    "memory": (fake_wish("g", memory_bytes=1 << 60), "memory: 1152921504606846976 bytes are wished, this node has"),
    "source": (fake_wish("h", engine="llamacpp", source="y.gguf"), "source 'y.gguf' is of no known kind"),
    "address": (fake_wish("i", engine="llamacpp", source="https://127.0.0.1/y.gguf"), "weights: "),
}


def test_what_can_never_run_here_is_rejected_with_cause_and_remedy(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            for wish, _ in REJECTED.values():
                await agent.wish(wish)
            for wish, says in REJECTED.values():
                record = await agent.shard(wish.shard, "Rejected")
                assert says in record.reason
                assert record.next_attempt_at is None
            for wish, _ in REJECTED.values():
                await agent.unwish(wish.shard)
            for wish, _ in REJECTED.values():
                await agent.nothing_left(wish.shard, wish.replica)

    asyncio.run(body())


def test_a_rejected_model_that_is_applied_again_is_tried_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            folder = tmp_path / "weights"
            await agent.wish(fake_wish(source=str(folder)))
            await agent.shard("m-1.0", "Rejected")
            folder.mkdir()
            await agent.wish(fake_wish(source=str(folder), generation=2))
            await agent.shard("m-1.0", "Ready", generation=2)

    asyncio.run(body())


def test_a_taken_port_is_left_out_and_a_port_lost_to_another_program_is_replaced(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            # Fails as an engine does that finds its port taken, once.
            flag = tmp_path / "seen"
            script = f"""
import os, sys
if not os.path.exists({str(flag)!r}):
    open({str(flag)!r}, "w").close()
    sys.exit("OSError: [Errno 98] Address already in use")
from llmgw_testing.fake_engine import main
"""
            program = tmp_path / "engine.py"
            program.write_text(
                script.replace("from llmgw_testing.fake_engine", "from llmgw_testing.fake_program") + "sys.exit(main())\n"
            )
            flags = ["--port", "{port}", "--model", "{name}", "--api-key", "{api_key}"]
            began = asyncio.get_running_loop().time()
            await agent.wish(fake_wish(command=[sys.executable, str(program), *flags]))
            record = await agent.shard("m-1.0", "Ready", restarts=1)
            assert asyncio.get_running_loop().time() - began < WITHIN
            # The log writer may start later than the engine is ready.
            await eventually(lambda: len(set(ports_of(record))) == 2, within=WITHIN, what="two attempts on two ports")

    asyncio.run(body())


def test_a_flooding_engine_serves_and_its_log_is_bounded(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, logs={"max_bytes": "64KiB", "files": 3}) as agent:
            await agent.wish(fake_wish(script="flood"))
            record = await agent.shard("m-1.0", "Ready")
            folder = Path(record.log_path).parent
            await eventually(lambda: len(files(folder)) >= 3, within=WITHIN, what="the log to be rotated")
            await asyncio.sleep(0.5)
            assert sum(size_of(path) for path in files(folder)) <= 4 * 65_536
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            assert (await ask(endpoint, engine_key(SECRET, "m-1", 1)))[0] == 200

    asyncio.run(body())


def test_no_child_of_a_dead_engine_is_left_before_the_next_one_starts(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish(script="double-fork"))
            before = await agent.shard("m-1.0", "Ready")
            children = {each.identity.pid for each in agent.processes()} - {before.pid}
            assert len(children) == 1
            assert before.pid is not None
            os.kill(before.pid, signal.SIGKILL)
            await agent.shard("m-1.0", "Ready", restarts=1)
            assert not children & {each.identity.pid for each in agent.processes()}
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())


def test_a_frozen_engine_is_taken_out_comes_back_and_is_restarted_when_it_stays_frozen(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, engines={"hang_seconds": 4, "stop_seconds": 0.5}) as agent:
            for name in ("m", "n"):
                await agent.wish(fake_wish(name))
            before = {name: await agent.shard(f"{name}-1.0", "Ready") for name in ("m", "n")}
            for record in before.values():
                assert record.pid is not None
                os.kill(record.pid, signal.SIGSTOP)
            suspect = await agent.shard("m-1.0", "Suspect", within=12)
            assert "does not answer" in suspect.reason
            assert await agent.endpoint("m-1") is None
            assert suspect.pid is not None
            await agent.wish(fake_wish("m", policy="other", generation=1))
            await agent.shard("m-1.0", "Suspect", generation=1)
            assert await agent.endpoint("m-1") is None, "a change of the wish does not bring a suspect back"
            os.kill(suspect.pid, signal.SIGCONT)
            thawed = await agent.shard("m-1.0", "Ready", generation=1)
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            assert endpoint.policy == "other"
            assert (thawed.pid, thawed.restarts) == (suspect.pid, 0)
            restarted = await agent.shard("n-1.0", "Ready", restarts=1, within=40)
            assert restarted.pid != before["n"].pid
            assert "did not answer for 4 s" in "".join(path.read_text() for path in files(folder_of(restarted)))

    asyncio.run(body())


def test_removal_lets_a_running_request_finish_and_takes_no_new_ones(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m", "--tokens", "5", script="slow", drain_seconds=20.0))
            await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            request = asyncio.create_task(ask(endpoint, engine_key(SECRET, "m-1", 1), stream=True))
            await asyncio.sleep(0.3)
            await agent.unwish("m-1.0")

            async def draining() -> bool:
                found = await agent.endpoint("m-1")
                return found is not None and found.draining

            await eventually(draining, within=WITHIN, what="the flag")
            status, data = await request
            assert status == 200
            assert data.rstrip().endswith(b"[DONE]")
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())


def test_a_request_that_does_not_end_holds_the_drain_up_only_for_its_time(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m", "--tokens", "1000", script="slow", drain_seconds=1.5))
            await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            request = asyncio.create_task(ask(endpoint, engine_key(SECRET, "m-1", 1), stream=True))
            await asyncio.sleep(0.3)
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            with pytest.raises(aiohttp.ClientError):
                await request

    asyncio.run(body())


def test_an_engine_that_ignores_sigterm_is_ended_all_the_same(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, engines={"stop_seconds": 0.3}) as agent:
            await agent.wish(fake_wish(script="ignore-sigterm"))
            await agent.shard("m-1.0", "Ready")
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())


def test_epochs_replace_each_other_in_one_direction_only(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish(epoch=2))
            first = await agent.shard("m-1.0", "Ready", epoch=2)
            await agent.wish(fake_wish(epoch=1))
            await agent.wish(fake_wish(epoch=3))
            second = await agent.shard("m-1.0", "Ready", epoch=3)
            assert second.pid != first.pid
            assert agent.engines("m-1.0") == [second.pid]

            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            await agent.wish(fake_wish(epoch=3))
            refused = await agent.shard("m-1.0", "Rejected")
            assert refused.reason == "epoch 3 has ended on this node; a new assignment needs an epoch above 3"
            await agent.wish(fake_wish(epoch=4))
            await agent.shard("m-1.0", "Ready", epoch=4)

    asyncio.run(body())


def test_changes_that_do_not_concern_the_process_leave_it_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            await agent.wish(fake_wish(policy="sticky", generation=5, drain_seconds=0.0))

            async def told() -> bool:
                found = await agent.endpoint("m-1")
                return found is not None and found.policy == "sticky"

            await eventually(told, within=WITHIN, what="the new policy")
            assert (await agent.shard("m-1.0", "Ready", generation=5)).pid == before.pid
            await agent.wish(fake_wish("m", "--tokens", "3", generation=6))
            after = await agent.shard("m-1.0", "Ready", generation=6)
            assert after.pid != before.pid, "other arguments need another process"

    asyncio.run(body())


def test_engines_end_with_the_agent_if_so_configured_and_come_back_with_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, engines={"on_stop": "stop"}) as agent:
            await agent.wish(fake_wish())
            await agent.shard("m-1.0", "Ready")
            await agent.stop()
            assert agent.processes() == []
            assert await agent.record("m-1.0") is None
            assert await agent.endpoint("m-1") is None
            assert await agent.store.get(keyspace.alive(agent.node)) is None
            await agent.start()
            await agent.shard("m-1.0", "Ready")

    asyncio.run(body())


def test_a_second_agent_on_the_same_state_folder_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            other = AgentHarness(tmp_path)
            await other.start()
            with pytest.raises(ConfigError, match=r"state_dir: .* is in use by another agent \(pid \d+\); stop it"):
                await other.failure()
            await agent.wish(fake_wish())
            await agent.shard("m-1.0", "Ready")

    asyncio.run(body())


def test_a_fault_in_one_worker_is_logged_and_costs_no_other_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = ["made up"]
    real = launch.locate

    async def faulty(context: Context, wish: AssignmentRecord, progress: Progress) -> tuple[Driver, Located]:
        if wish.model == "bad" and faults:
            raise KeyError(faults.pop())
        return await real(context, wish, progress)

    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("good"))
            before = await agent.shard("good-1.0", "Ready")
            await agent.wish(fake_wish("bad"))
            await agent.shard("bad-1.0", "Ready")
            assert agent.engines("good-1.0") == [before.pid]
            await agent.unwish("bad-1.0")
            await agent.nothing_left("bad-1.0", "bad-1")

    monkeypatch.setattr(runner, "locate", faulty)
    monkeypatch.setattr(supervisor, "FAULT_PAUSE", 0.1)
    asyncio.run(body())
    assert "fault in the worker of shard bad-1.0" in caplog.text
    assert "KeyError: 'made up'" in caplog.text


async def no_endpoint(agent: AgentHarness) -> bool:
    return await agent.endpoint("m-1") is None


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # rotated since it was listed


def files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def folder_of(record: ShardRecord) -> Path:
    return Path(record.log_path).parent


def ports_of(record: ShardRecord) -> list[str]:
    lines = [line for line in lines_of(record) if line.startswith("[llmgw] attempt")]
    return [line.split("port ")[1].split(":")[0] for line in lines]


def lines_of(record: ShardRecord) -> list[str]:
    return Path(record.log_path).read_text().splitlines()
