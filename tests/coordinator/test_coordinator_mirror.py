"""What is known of etcd, and what is not."""

from __future__ import annotations

import asyncio

from llmgw_coordinator.state import Mirror
from llmgw_coordinator.state.durations import Absence
from llmgw_coordinator.state.expected import Expected
from llmgw_coordinator.state.names import of_node, one, two
from llmgw_proto import keyspace
from llmgw_testing.clock import settle
from llmgw_testing.coordinators import Cluster
from llmgw_testing.worlds import model


def test_a_value_that_cannot_be_read_leaves_the_last_good_one_in_force_and_hides_no_other() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as one_of_them:
            await cluster.apply(model("org/m", 2))
            await settle()
            await cluster.write_raw(keyspace.model("org/m"), b'{"name": "org/m", "profiles": "none"}')
            await cluster.write_raw(keyspace.model("never"), b"\xff\x00")
            await cluster.apply(model("fine"))
            await settle()
            view = one_of_them.mirror.view()
            assert view.models["org/m"].record.replicas.min == 2
            assert "fine" in view.models
            assert set(view.unread_models) == {"org/m", "never"}
            assert "profiles" in view.unread_models["org/m"]
            await cluster.apply(model("org/m", 3))
            await settle()
            assert set(one_of_them.mirror.view().unread_models) == {"never"}
            await cluster.hand.delete(keyspace.model("never"))
            await settle()
            assert one_of_them.mirror.view().unreadable == {}

    asyncio.run(body())


def test_an_alive_key_that_cannot_be_read_still_says_alive_but_closes_the_node() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as one_of_them:
            await cluster.add_node("n1")
            await cluster.write_raw(keyspace.alive("n1"), b"{}")
            await settle()
            view = one_of_them.mirror.view()
            assert view.breathing == {"n1"}
            assert "n1" in view.unread_nodes

    asyncio.run(body())


def test_a_view_does_not_change_under_its_holder() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as one_of_them:
            await cluster.apply(model("m"))
            await settle()
            before = one_of_them.mirror.view()
            assert one_of_them.mirror.view() is before
            await cluster.hand.delete(keyspace.model("m"))
            await settle()
            assert "m" in before.models
            assert "m" not in one_of_them.mirror.view().models

    asyncio.run(body())


def test_a_store_that_does_not_answer_makes_it_stale_and_coming_back_makes_it_right() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as one_of_them:
            assert (one_of_them.mirror.stale_for, one_of_them.mirror.trouble) == (None, None)
            one_of_them.store.down()
            await cluster.live(5)
            assert (one_of_them.mirror.stale_for or 0) >= 4
            assert "etcd does not answer" in (one_of_them.mirror.trouble or "")
            await cluster.apply(model("meanwhile"))
            one_of_them.store.up()
            await cluster.live(2)
            assert one_of_them.mirror.trouble is None
            assert "meanwhile" in one_of_them.mirror.view().models

    asyncio.run(body())


def test_a_store_that_was_wiped_freezes_it_and_nothing_is_forgotten() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as one_of_them:
            await cluster.apply(model("m"))
            await settle()
            cluster.server.wipe()
            await cluster.live(5)
            assert "not the store known before" in (one_of_them.mirror.trouble or "")
            assert one_of_them.mirror.frozen
            assert "m" in one_of_them.mirror.view().models

    asyncio.run(body())


def test_before_the_first_list_nothing_may_be_decided() -> None:
    async def body() -> None:
        cluster = Cluster()
        cluster.hand.down()
        mirror = Mirror(cluster.hand, cluster.clock)
        task = asyncio.create_task(mirror.run())
        await settle()
        seen = [(mirror.is_synced, mirror.trouble is None)]
        cluster.hand.up()
        await cluster.live(2)
        seen.append((mirror.is_synced, mirror.trouble is None))
        assert seen == [(False, False), (True, True)]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_keys_of_another_shape_are_left_to_whom_they_belong() -> None:
    assert one(keyspace.MODELS)(keyspace.model("org/m")) == "org/m"
    assert one(keyspace.MODELS)(keyspace.MODELS + "a/b") is None
    assert two(keyspace.SHARDS)(keyspace.shard("n/1", "r.0")) == ("n/1", "r.0")
    assert two(keyspace.SHARDS)(keyspace.SHARDS + "n1") is None
    assert of_node("alive")(keyspace.alive("n1")) == "n1"
    assert of_node("alive")(keyspace.inventory("n1")) is None
    assert of_node("alive")(keyspace.NODES + "n1/future/alive") is None


def test_own_writes_are_expected_until_their_echo_comes() -> None:
    async def body() -> None:
        expected = Expected()
        expected.add("/a", b"1")
        expected.add("/b", None)
        expected.observe("/a", b"an older value")
        assert set(expected.outstanding()) == {"/a", "/b"}
        expected.observe("/a", b"1")
        expected.observe("/b", None)
        async with asyncio.timeout(1):
            await expected.settled()

    asyncio.run(body())


def test_absence_counts_from_when_it_was_seen_and_not_while_nobody_could_see() -> None:
    absence = Absence()
    assert absence.update(["a", "b"], {"a"}, 0, now=100.0) == {"b": 0.0}
    assert absence.update(["a", "b"], set(), 0, now=130.0) == {"a": 0.0, "b": 30.0}
    assert absence.update(["a", "b"], {"b"}, 0, now=140.0) == {"a": 10.0}
    assert absence.update(["a", "b"], set(), 0, now=150.0) == {"a": 20.0, "b": 0.0}
    assert absence.update(["a", "b"], set(), 1, now=500.0) == {"a": 0.0, "b": 0.0}
    assert absence.update(["b"], set(), 1, now=510.0) == {"b": 10.0}
    assert absence.witnessed == {"a", "b"}
    absence.update(["b", "c"], set(), 1, now=520.0)
    assert "c" not in absence.witnessed


def test_who_waits_for_a_write_reads_it_and_who_waits_in_vain_does_not_hang() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with cluster.coordinator() as one_of_them:
            mirror = one_of_them.mirror
            waiting = asyncio.create_task(mirror.shows(lambda view: "m" in view.models, within=30))
            await settle()
            assert not waiting.done()
            await cluster.apply(model("m"))
            assert await waiting
            assert not await mirror.shows(lambda view: "other" in view.models, within=0.01)

    asyncio.run(body())
