"""The leader at work: what it writes, what it leaves, and what it does when etcd or the nodes misbehave."""

from __future__ import annotations

import asyncio

import pytest

from llmgw_base.etcd.api import DeleteOp, PutOp, Stale, Synced
from llmgw_base.etcd.errors import StoreUnavailableError
from llmgw_coordinator.planner import Plan, World, plan
from llmgw_proto import SCHEMA_VERSION, keyspace
from llmgw_proto.records import ClusterRecord, ReplicaRange, ShardState
from llmgw_testing.clock import settle
from llmgw_testing.coordinators import TTL, Cluster
from llmgw_testing.worlds import model, profile


def test_the_first_leader_makes_the_cluster_and_later_ones_leave_it() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator("c1"):
            await cluster.live()
            first = await cluster.hand.get(keyspace.CLUSTER)
        async with cluster.coordinator("c2"):
            await cluster.live()
            assert await cluster.hand.get(keyspace.CLUSTER) == first
        assert first is not None
        record = ClusterRecord.decode(first.value)
        assert (record.name, record.schema_version, len(record.engine_secret)) == ("test", SCHEMA_VERSION, 64)

    asyncio.run(body())


def test_models_are_placed_scaled_and_removed_and_standbys_write_nothing() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.add_node("n2")
        async with cluster.coordinator("c1"), cluster.coordinator("c2") as standby:
            await cluster.apply(model("m", 2))
            await cluster.live()
            assert {name: len(each) for name, each in (await cluster.assigned()).items()} == {"n1": 1, "n2": 1}
            await cluster.agents()
            await cluster.apply(model("m", 1, generation=1))
            await cluster.live()
            await cluster.agents()
            await cluster.live()
            assert len(await cluster.replicas()) == 1
            await cluster.hand.delete(keyspace.model("m"))
            await cluster.live()
            assert await cluster.replicas() == []
            assert not standby.leads
            assert len(standby.mirror.expected) == 0, "only the leader writes"

    asyncio.run(body())


def test_a_new_leader_goes_to_work_at_once_although_standbys_take_their_time() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        async with cluster.coordinator("c1") as first, cluster.coordinator("c2"):
            await cluster.live(10)
            await first.election.step_down()
            await cluster.apply(model("m"))
            await cluster.live(0.2)
            assert len(await cluster.replicas()) == 1

    asyncio.run(body())


def test_a_standby_knows_why_a_model_waits() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator("c1"), cluster.coordinator("c2") as standby:
            await cluster.apply(model("m"))
            await cluster.live()
            assert "no node has joined" in standby.reconciler.outcome.reasons["m"]

    asyncio.run(body())


def test_changes_at_once_are_planned_together_and_each_replica_is_placed_once() -> None:
    async def body() -> None:
        passes = 0

        def counted(world: World) -> Plan:
            nonlocal passes
            passes += 1
            return plan(world)

        cluster = Cluster()
        for index in range(3):
            await cluster.add_node(f"n{index}")
        async with cluster.coordinator(planner=counted):
            await cluster.live()
            passes = 0
            for index in range(50):
                await cluster.apply(model(f"m{index}", 2))
            await cluster.live(2)
            assert len(await cluster.replicas()) == 100
            assert passes < 10

    asyncio.run(body())


def test_a_model_that_breaks_the_planner_is_reported_and_the_others_go_on() -> None:
    async def body() -> None:
        def poisoned(world: World) -> Plan:
            broken = {
                name: spec.model_copy(update={"profiles": None}) if name == "bad" else spec
                for name, spec in world.models.items()
            }
            return plan(World(broken, world.nodes, world.assignments, world.shards, settings=world.settings))

        cluster = Cluster()
        await cluster.add_node("n1")
        async with cluster.coordinator(planner=poisoned) as leader:
            await cluster.apply(model("bad"))
            await cluster.apply(model("good"))
            await cluster.live()
            assert [each.model for each in await cluster.replicas()] == ["good"]
            assert list(leader.reconciler.outcome.failures) == ["bad"]

    asyncio.run(body())


def test_a_pass_that_fails_altogether_is_followed_by_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        failing = True

        def planner(world: World) -> Plan:
            if failing:
                raise ZeroDivisionError("once")
            return plan(world)

        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.apply(model("m"))
        async with cluster.coordinator(planner=planner):
            await cluster.live()
            failing = False
            await cluster.live(10)
            assert len(await cluster.replicas()) == 1

    asyncio.run(body())
    assert "a pass failed" in caplog.text


def test_a_lost_answer_to_a_placement_makes_one_replica() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        async with cluster.coordinator() as leader:
            await cluster.live()
            leader.store.lose_next_answer()
            await cluster.apply(model("m"))
            await cluster.live(20)
            assert len(await cluster.replicas()) == 1
            assert len(leader.mirror.expected) == 0

    asyncio.run(body())


def test_a_placement_that_never_arrived_is_made_after_all() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        async with cluster.coordinator() as leader:
            await cluster.live()
            leader.store.fail_next(StoreUnavailableError("etcd: cut (test)"))
            await cluster.apply(model("m"))
            await cluster.live(20)
            assert len(await cluster.replicas()) == 1

    asyncio.run(body())


def test_an_assignment_that_someone_took_away_is_made_again() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.apply(model("m"))
        async with cluster.coordinator():
            await cluster.live()
            for item in (await cluster.hand.range(keyspace.ASSIGNMENTS)).items:
                await cluster.hand.delete(item.key)
            await cluster.live(2)
            assert len(await cluster.replicas()) == 1

    asyncio.run(body())


def test_while_etcd_is_away_nothing_is_planned_and_after_it_all_converges() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.apply(model("m", 2))
        async with cluster.coordinator() as leader:
            await cluster.live()
            await cluster.agents()
            before = await cluster.replicas()
            cluster.server.stop()
            await cluster.live(600)
            assert leader.mirror.trouble is not None
            cluster.server.start()
            await cluster.live(10)
            assert leader.leads
            assert await cluster.replicas() == before
            await cluster.apply(model("m", 3, generation=1))
            await cluster.live(2)
            assert len(await cluster.replicas()) == 3

    asyncio.run(body())


def test_a_frozen_store_gets_no_decision() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.apply(model("m", 2))
        async with cluster.coordinator() as leader:
            await cluster.live()
            cluster.server.wipe()
            await cluster.live(3 * TTL)
            assert leader.mirror.frozen
            assert (await cluster.hand.range(keyspace.ASSIGNMENTS)).items == ()

    asyncio.run(body())


def test_with_a_part_of_the_view_out_of_date_nothing_is_decided_and_absences_start_anew() -> None:
    async def body() -> None:
        cluster = Cluster()
        for index in range(3):
            await cluster.add_node(f"n{index}", gpus=1)
        await cluster.apply(model("m", 1, profile(gpus=1)))
        async with cluster.coordinator() as leader:
            await cluster.live()
            before = await cluster.assigned()
            (name,) = before
            await cluster.vanish(name)
            await cluster.live(50)
            # From here on nobody can tell whether the node is back.
            leader.mirror._take(keyspace.NODES, Stale("the watch broke (test)"))
            await cluster.live(100)
            assert leader.leads
            assert await cluster.assigned() == before
            leader.mirror._take(keyspace.NODES, Synced(1))
            await cluster.live(50)
            assert await cluster.assigned() == before
            await cluster.live(20)
            assert list(await cluster.assigned()) != list(before)

    asyncio.run(body())


def test_all_leases_gone_at_once_move_nothing() -> None:
    """As after etcd was stopped for longer than the leases: every node seems away until its agent registers again."""

    async def body() -> None:
        cluster = Cluster()
        for index in range(4):
            await cluster.add_node(f"n{index}")
        await cluster.apply(model("m", 4))
        async with cluster.coordinator() as leader:
            await cluster.live()
            await cluster.agents()
            before = await cluster.assigned()
            for index in range(4):
                await cluster.vanish(f"n{index}")
            await cluster.live(360)
            assert await cluster.assigned() == before
            assert "4 of 4 nodes vanished" in leader.reconciler.outcome.problems[0]
            for index in range(4):
                await cluster.come_alive(f"n{index}")
            await cluster.live(5)
            assert leader.reconciler.outcome.problems == []
            assert await cluster.assigned() == before

    asyncio.run(body())


def test_one_lost_node_is_replaced_after_the_grace_and_not_before() -> None:
    async def body() -> None:
        cluster = Cluster()
        for index in range(3):
            await cluster.add_node(f"n{index}", gpus=1)
        await cluster.apply(model("m", 2, profile(gpus=1)))
        async with cluster.coordinator():
            await cluster.live()
            await cluster.agents()
            assert sorted(await cluster.assigned()) == ["n0", "n1"]
            await cluster.vanish("n1")
            await cluster.live(58)
            assert sorted(await cluster.assigned()) == ["n0", "n1"]
            await cluster.live(4)
            after = await cluster.assigned()
            assert sorted(after) == ["n0", "n2"]
            assert after["n2"][0].epoch == 2

    asyncio.run(body())


def test_a_replica_that_its_node_rejects_is_moved_and_remembered() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.add_node("n2")
        await cluster.apply(model("m"))
        async with cluster.coordinator() as first:
            await cluster.live()
            ((name, (wish,)),) = (await cluster.assigned()).items()
            await cluster.report(name, wish, ShardState.REJECTED, reason="no such file")
            await cluster.live()
            ((second, (moved,)),) = (await cluster.assigned()).items()
            assert (second != name, moved.replica, moved.epoch, moved.tried) == (True, wish.replica, 2, [name])
            await cluster.report(second, moved, ShardState.REJECTED, reason="no such file")
            await first.election.step_down()
        async with cluster.coordinator("c2") as other:
            await cluster.live(10)
            assert await cluster.assigned() == {second: [moved]}, "the new leader knows what was tried"
            assert "no such file" in other.reconciler.outcome.reasons["m"]

    asyncio.run(body())


def test_a_failure_moves_a_replica_only_when_its_agent_has_had_the_time_to_announce_another_attempt() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.add_node("n2")
        await cluster.apply(model("m"))
        async with cluster.coordinator():
            await cluster.live()
            before = await cluster.assigned()
            ((name, (wish,)),) = before.items()
            # The engine broke; the agent ends it and then says when it tries again.
            await cluster.report(name, wish, ShardState.FAILED, reason="exit status 1")
            await cluster.live(12)
            await cluster.report(name, wish, ShardState.FAILED, reason="exit status 1", next_attempt_at=1.0)
            await cluster.live(60)
            assert await cluster.assigned() == before
            # The breaker opens: no attempt is ahead.
            await cluster.report(name, wish, ShardState.FAILED, reason="it failed 5 times")
            await cluster.live(14)
            assert await cluster.assigned() == before
            await cluster.live(2)
            ((other, (moved,)),) = (await cluster.assigned()).items()
            assert (other != name, moved.epoch, moved.tried) == (True, 2, [name])

    asyncio.run(body())


def test_a_deposed_leader_writes_nothing_and_the_new_one_does() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        async with cluster.coordinator("c1") as old, cluster.coordinator("c2") as new:
            await cluster.live()
            term = old.election.term
            assert term is not None, "the first one leads"
            # The old one's key vanishes while its watch is deaf, and work comes in.
            old.store.break_watches()
            cluster.server.txn((), (DeleteOp(term.key),), ())
            cluster.server.txn((), (PutOp(keyspace.model("m"), model("m", 2).encode()),), ())
            await cluster.live(3)
            assert (old.leads, new.leads) == (False, True)
            assert len(await cluster.replicas()) == 2

    asyncio.run(body())


def test_two_clients_scaling_at_once_end_with_what_the_last_one_wished_and_disjoint_gpus() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1", gpus=8)
        await cluster.apply(model("m", 4, profile(gpus=2)))
        async with cluster.coordinator() as leader:
            await cluster.live()
            await cluster.agents()
            for count in (2, 4, 2, 4):
                await asyncio.gather(leader.specs.scale("m", count), leader.specs.scale("m", 6 - count))
                await cluster.live()
                used = [gpu for each in await cluster.replicas() for gpu in each.gpus]
                assert len(used) == len(set(used)) <= 8
            await leader.specs.scale("m", 4)
            for _ in range(5):
                await cluster.live()
                await cluster.agents()
            assert sorted(gpu for each in await cluster.replicas() for gpu in each.gpus) == [
                f"n1-g{index}" for index in range(8)
            ]

    asyncio.run(body())


def test_a_change_that_needs_no_restart_keeps_the_epoch() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.apply(model("m"))
        async with cluster.coordinator():
            await cluster.live()
            await cluster.agents()
            (before,) = await cluster.replicas()
            await cluster.apply(model("m", generation=5, drain_seconds=1))
            await cluster.live()
            (after,) = await cluster.replicas()
            assert (after.replica, after.epoch, after.drain_seconds, after.generation) == (before.replica, 1, 1, 5)

    asyncio.run(body())


def test_a_damaged_assignment_is_put_right_when_its_model_goes() -> None:
    async def body() -> None:
        cluster = Cluster()
        await cluster.add_node("n1")
        await cluster.apply(model("m"))
        async with cluster.coordinator() as leader:
            await cluster.live()
            (wish,) = await cluster.replicas()
            await cluster.write_raw(keyspace.assignment("n1", wish.shard), b"rubbish")
            await cluster.live()
            assert leader.mirror.view().unreadable
            await cluster.hand.delete(keyspace.model("m"))
            await cluster.live(10)
            assert (await cluster.hand.range(keyspace.ASSIGNMENTS)).items == ()

    asyncio.run(body())


def test_max_of_the_range_is_raised_by_scaling_beyond_it() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as leader:
            await cluster.apply(model("m").model_copy(update={"replicas": ReplicaRange(min=1, max=2)}))
            await settle()
            written = await leader.specs.scale("m", 5)
            assert written is not None
            assert (written.spec.replicas.min, written.spec.replicas.max) == (5, 5)
            assert await leader.specs.scale("unknown", 1) is None

    asyncio.run(body())
