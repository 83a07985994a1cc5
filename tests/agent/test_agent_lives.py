"""Several lives of one agent: engines outlive each of them, and are known again by the next."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from llmgw_agent.process.identity import boot_id, read_stat
from llmgw_agent.shard.state import SavedProcess, StateDir, read_state
from llmgw_base.config import ConfigError
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord
from llmgw_testing.agent_harness import SECRET, WITHIN, AgentHarness, fake_wish
from llmgw_testing.wait import eventually


def state(agent: AgentHarness) -> StateDir:
    return StateDir(agent.config.state_dir)


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_the_next_life_adopts_the_same_processes(tmp_path: Path, end: str) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            for name in ("m", "n", "o"):
                await agent.wish(fake_wish(name))
            before = {name: await agent.shard(f"{name}-1.0", "Ready") for name in ("m", "n", "o")}
            await (agent.stop() if end == "stop" else agent.crash())
            assert {pid for name in before for pid in agent.engines(f"{name}-1.0")} == {
                record.pid for record in before.values()
            }
            if end == "stop":
                assert await agent.endpoint("m-1") is not None, "routers do not miss it while a new agent comes"
            await agent.start()

            async def adopted() -> bool:
                records = {name: await agent.record(f"{name}-1.0") for name in before}
                return all(record and record.updated_at > before[name].updated_at for name, record in records.items())

            await eventually(adopted, within=5, what="adoption of all three")
            for name, old in before.items():
                new = await agent.shard(f"{name}-1.0", "Ready")
                assert (new.pid, new.port, new.restarts, new.started_at) == (old.pid, old.port, 0, old.started_at)
                assert agent.engines(f"{name}-1.0") == [old.pid]
            pid = before["m"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert (await agent.shard("m-1.0", "Ready", restarts=1)).pid != pid, (
                "an adopted engine is supervised like any other"
            )
            await agent.unwish("n-1.0")
            await agent.nothing_left("n-1.0", "n-1")

    asyncio.run(body())


def test_an_engine_that_died_meanwhile_is_started_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            await agent.crash()
            assert before.pid is not None
            os.kill(before.pid, signal.SIGKILL)
            await agent.start()
            after = await agent.shard("m-1.0", "Ready", restarts=1)
            assert after.pid != before.pid

    asyncio.run(body())


def test_after_a_reboot_engines_start_again_and_nobody_is_signalled(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            await agent.shard("m-1.0", "Ready")
            await agent.crash()
            kill_all(agent)
            foreign = await asyncio.create_subprocess_exec("sleep", "600")
            try:
                stat = read_stat(foreign.pid)
                assert stat is not None
                for start_ticks, boot, restarts in (
                    (stat.start_ticks, "another boot", 0),
                    (stat.start_ticks + 1, boot_id(), 1),
                ):
                    (saved,) = state(agent).load_all().values()
                    process = SavedProcess(pid=foreign.pid, start_ticks=start_ticks, boot_id=boot, started_at=1.0)
                    state(agent).save(saved.model_copy(update={"process": process, "restarts": 0}))
                    await agent.start()
                    record = await agent.shard("m-1.0", "Ready", restarts=restarts)
                    assert record.pid != foreign.pid
                    assert foreign.returncode is None
                    await agent.crash()
                    kill_all(agent)
            finally:
                foreign.kill()
                await foreign.wait()

    asyncio.run(body())


def test_a_lost_or_damaged_state_file_is_rebuilt_from_process_and_wish(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            for damage in ("cut", "gone"):
                await agent.crash()
                path = state(agent).path("m-1.0")
                if damage == "cut":
                    path.write_bytes(path.read_bytes()[:-20])
                else:
                    path.unlink()
                await agent.start()
                await eventually(lambda: adopted_in_state(agent, before.pid), within=WITHIN, what=f"adoption, file {damage}")
                await agent.shard("m-1.0", "Ready")
                assert agent.engines("m-1.0") == [before.pid]
            assert path.with_suffix(".damaged").exists()

    asyncio.run(body())


def test_processes_that_nobody_wishes_are_ended_once_the_list_is_whole(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m"))
            await agent.wish(fake_wish("n"))
            await agent.wish(fake_wish("o", script="double-fork"))
            await agent.wish(fake_wish("p", script="double-fork"))
            for shard in ("m-1.0", "n-1.0", "o-1.0"):
                await agent.shard(shard, "Ready")
            half_dead = await agent.shard("p-1.0", "Ready")
            await agent.crash()
            assert half_dead.pid is not None
            os.kill(half_dead.pid, signal.SIGKILL)
            await agent.unwish("p-1.0")
            state(agent).path("m-1.0").unlink()
            await agent.unwish("m-1.0")
            await agent.unwish("n-1.0")
            state(agent).path("o-1.0").unlink()
            await agent.wish(fake_wish("o", epoch=2))
            await agent.start()
            await agent.nothing_left("m-1.0", "m-1")
            await agent.nothing_left("n-1.0", "n-1")
            await agent.nothing_left("p-1.0", "p-1")
            record = await agent.shard("o-1.0", "Ready", epoch=2)
            assert {each.identity.pid for each in agent.processes()} == {record.pid}

    asyncio.run(body())


def test_a_removal_that_was_begun_is_carried_through(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            await agent.shard("m-1.0", "Ready")
            await agent.crash()
            (saved,) = state(agent).load_all().values()
            state(agent).save(saved.model_copy(update={"finishing": True}))
            await agent.start()
            refused = await agent.shard("m-1.0", "Rejected")
            assert "epoch 1 has ended on this node" in refused.reason
            assert agent.processes() == []

    asyncio.run(body())


def test_an_open_breaker_outlives_the_agent(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, restart={"attempts": 3, "first_delay": 0.05, "longest_delay": 0.1}) as agent:
            await agent.wish(fake_wish(script="exit-1"))
            await agent.shard("m-1.0", "Failed", restarts=3, next_attempt_at=None)
            await agent.stop()
            await agent.start()
            again = await agent.shard("m-1.0", "Failed", restarts=4, next_attempt_at=None)
            assert "It failed 4 times in a row" in again.reason

    asyncio.run(body())


def test_without_etcd_engines_are_adopted_and_restarted(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            await agent.crash()
            agent.store.server.stop()
            await agent.start()
            assert before.pid is not None
            await eventually(lambda: adopted_in_state(agent, before.pid), within=WITHIN, what="adoption")
            os.kill(before.pid, signal.SIGKILL)

            def another() -> bool:
                engines = agent.engines("m-1.0")
                return len(engines) == 1 and engines[0] != before.pid

            await eventually(another, within=WITHIN, what="another engine")
            agent.store.server.start()
            after = await agent.shard("m-1.0", "Ready", restarts=1)
            assert [after.pid] == agent.engines("m-1.0")

    asyncio.run(body())


def test_an_outage_longer_than_the_lease_touches_no_engine(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            agent.life.down()
            await eventually(lambda: no_endpoint(agent), within=WITHIN, what="the lease to run out")
            assert agent.engines("m-1.0") == [before.pid]
            agent.life.up()
            after = await agent.shard("m-1.0", "Ready")
            assert (after.pid, after.restarts) == (before.pid, 0)

    asyncio.run(body())


def test_an_emptied_store_or_another_cluster_stops_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            agent.store.wipe()
            await eventually(lambda: no_endpoint(agent), within=WITHIN, what="the wiped store to be seen")
            await asyncio.sleep(1)
            assert agent.engines("m-1.0") == [before.pid]
            await agent.crash()

            other = ClusterRecord(id="cluster-2", name="other", created_at=0, engine_secret=SECRET)
            await agent.store.put(keyspace.CLUSTER, other.encode())
            await agent.start()
            await eventually(lambda: adopted_in_state(agent, before.pid), within=WITHIN, what="adoption")
            await asyncio.sleep(1.5)
            assert agent.engines("m-1.0") == [before.pid]
            assert await agent.store.get(keyspace.alive(agent.node)) is None, "an agent does not join a foreign cluster"

            await agent.crash()
            state(agent).cluster_file.unlink()
            await agent.start()
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())


def test_a_full_disk_is_said_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")

            async def said() -> bool:
                found = await agent.store.get(keyspace.node_status(agent.node))
                return found is not None and b"No space left on device; free the disk" in found.value

            monkeypatch.setattr("llmgw_agent.node.EVERY_SECONDS", 0.2)
            with monkeypatch.context() as patch:
                patch.setattr("llmgw_agent.shard.state.write_atomically", full)
                await agent.wish(fake_wish(policy="x", generation=1))
                assert (await agent.shard("m-1.0", "Ready", generation=1)).pid == before.pid
                await eventually(said, within=WITHIN, what="the problem in the node's status")
                assert state(agent).load_all()["m-1.0"].assignment.generation == 0, "the old file is whole"
            await eventually(lambda: saved_generation(agent) == 1, within=WITHIN, what="the state to be written")

            async def healed() -> bool:
                return not await said()

            await eventually(healed, within=WITHIN, what="the problem to go")

    asyncio.run(body())


def saved_generation(agent: AgentHarness) -> int:
    return state(agent).load_all()["m-1.0"].assignment.generation


def kill_all(agent: AgentHarness) -> None:
    for each in agent.processes():
        os.kill(each.identity.pid, signal.SIGKILL)
    shutil.rmtree(agent.config.state_dir / "logs", ignore_errors=True)


def adopted_in_state(agent: AgentHarness, pid: int | None) -> bool:
    """Whether the state file is whole and names the process."""
    saved = read_state(state(agent).path("m-1.0"), "m-1.0")
    return saved.process is not None and saved.process.pid == pid


async def no_endpoint(agent: AgentHarness) -> bool:
    return await agent.endpoint("m-1") is None


def test_a_second_agent_of_the_same_name_gives_up_and_touches_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path / "one") as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            other = AgentHarness(tmp_path / "two", server=agent.store.server, node={"name": agent.node})
            await other.start()
            with pytest.raises(ConfigError, match="another agent on this host is already named"):
                await other.failure()
            assert agent.engines("m-1.0") == [before.pid]
            assert (await agent.shard("m-1.0", "Ready")).pid == before.pid

    asyncio.run(body())


def test_a_lost_state_folder_costs_no_engine(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m"))
            await agent.wish(fake_wish("n"))
            before = {name: await agent.shard(f"{name}-1.0", "Ready") for name in ("m", "n")}
            await agent.crash()
            shutil.rmtree(agent.config.state_dir / "shards")
            (agent.config.state_dir / "cluster").unlink()
            await agent.unwish("n-1.0")
            await agent.start()
            await agent.nothing_left("n-1.0", "n-1")
            await eventually(lambda: adopted_in_state(agent, before["m"].pid), within=WITHIN, what="adoption")
            assert agent.engines("m-1.0") == [before["m"].pid]

    asyncio.run(body())


def test_agents_of_two_clusters_on_one_host_leave_each_others_engines_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path / "one") as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            async with AgentHarness(tmp_path / "two", cluster="cluster-2", node={"name": agent.node}) as other:
                await other.wish(fake_wish("n"))
                await other.shard("n-1.0", "Ready")
                await other.unwish("n-1.0")
                await other.nothing_left("n-1.0", "n-1")
                assert agent.engines("m-1.0") == [before.pid]

    asyncio.run(body())
