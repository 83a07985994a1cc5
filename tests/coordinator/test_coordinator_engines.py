"""The fleet's settings for engines, and engines of nodes, relayed from agents."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import StatusCode, aio
from yarl import URL

from llmgw_base.clock import SystemClock
from llmgw_base.secrets import agent_token
from llmgw_coordinator.api import engines, weights
from llmgw_coordinator.api.agents import CONNECT_LIMIT
from llmgw_coordinator.engine_settings import EngineStore, with_version
from llmgw_ctl.client import ANSWER_SECONDS
from llmgw_proto import engines_pb2 as pb
from llmgw_proto import keyspace
from llmgw_proto.engines_pb2_grpc import EnginesServicer, add_EnginesServicer_to_server
from llmgw_proto.records import AliveRecord, ClusterRecord
from llmgw_proto.records.engine import LOCK_LIMIT, EngineOverride, EngineRelease, EngineSettings
from llmgw_testing.clock import FakeClock
from llmgw_testing.coordinators import TOKEN, Admin, Cluster, admin_of
from llmgw_testing.memstore import MemoryStore

SECRET = "ab" * 32
FLEET = "/admin/v1/engines"
NODE = "/admin/v1/nodes/n1/engines"
LOCK = f"vllm==1.0 \\\n    --hash=sha256:{'0' * 64}\n"


class FakeEngines(EnginesServicer):
    """Does as it is told and remembers it; with ``refusal`` it refuses, an installation after its first step."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refusal: tuple[StatusCode, str] | None = None
        self.refuses_at_once = False

    def _take(self, request: Any, context: Any) -> None:
        assert dict(context.invocation_metadata())["authorization"] == f"Bearer {agent_token(SECRET, 'n1')}"
        self.asked.append(request)

    async def List(self, request: Any, context: Any) -> pb.EngineList:  # noqa: N802 - gRPC's name
        self._take(request, context)
        there = pb.NodeEngine(engine="vllm", version="1.0", state="installed", bytes=5, used_by=["m-1.0"], default=True)
        return pb.EngineList(engines=[there], folder="/e")

    async def Install(self, request: Any, context: Any) -> AsyncIterator[pb.EngineProgress]:  # noqa: N802 - gRPC's name
        self._take(request, context)
        if self.refusal is not None and self.refuses_at_once:
            await context.abort(*self.refusal)
        yield pb.EngineProgress(fraction=0.25, phase="resolving")
        if self.refusal is not None:
            await context.abort(*self.refusal)
        done = pb.NodeEngine(engine=request.engine, version="1.0", state="installed")
        yield pb.EngineProgress(fraction=1, phase="installed", result=done)

    async def Remove(self, request: Any, context: Any) -> pb.RemovedEngines:  # noqa: N802 - gRPC's name
        self._take(request, context)
        if self.refusal is not None:
            await context.abort(*self.refusal)
        return pb.RemovedEngines(versions=["1.0"], freed_bytes=5)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Cluster, FakeEngines, Admin]]:
    agent, server, cluster = FakeEngines(), aio.server(), Cluster()
    add_EnginesServicer_to_server(agent, server)  # type: ignore[no-untyped-call]  # generated
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    record = ClusterRecord(id="i", name="test", created_at=0.0, engine_secret=SECRET)
    await cluster.hand.put(keyspace.CLUSTER, record.encode())
    for name, where in (("n1", address), ("n2", "127.0.0.1:9")):
        await cluster.add_node(name)
        alive = AliveRecord(node=name, version="0", started_at=0.0, pid=1, grpc_address=where)
        await cluster.hand.put(keyspace.alive(name), alive.encode())
    try:
        async with cluster.coordinator() as coordinator, admin_of(coordinator, SystemClock()) as admin:
            yield cluster, agent, admin
    finally:
        await server.stop(None)


async def stored(cluster: Cluster, engine: str = "vllm") -> EngineSettings | None:
    found = await cluster.hand.get(keyspace.engine(engine))
    return None if found is None else EngineSettings.decode(found.value)


def test_versions_are_set_for_all_and_for_some_and_taken_back() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            first = await admin.ask("POST", f"{FLEET}/vllm/set", {"version": "1.0", "lock": LOCK})
            assert (first.status, first.body["version"]) == (200, "1.0")
            digest = hashlib.sha256(LOCK.encode()).hexdigest()
            assert first.body["releases"]["1.0"]["lock_sha256"] == digest
            lock = await cluster.hand.get(keyspace.engine_lock("vllm", "1.0"))
            assert lock is not None
            assert lock.value.decode() == LOCK
            for version in ("2.0", "2.1"):
                body = {"version": version, "labels": {"ring": "canary"}, "index": "https://i/"}
                await admin.ask("POST", f"{FLEET}/vllm/set", body)
            await admin.ask("POST", f"{FLEET}/vllm/set", {"version": "0.8", "gpu_class": "V100-32GB"})
            await admin.ask("POST", f"{FLEET}/vllm/set", {"version": "3.0", "requirements": ["x"], "release_only": True})
            # A version that is set again without more keeps how it is had.
            await admin.ask("POST", f"{FLEET}/vllm/set", {"version": "1.0"})
            found = await stored(cluster)
            assert found is not None
            assert found.version == "1.0"
            assert [(each.version, each.gpu_class) for each in found.overrides] == [("2.1", None), ("0.8", "V100-32GB")]
            assert found.releases["1.0"].lock_sha256 == digest
            assert found.releases["3.0"].requirements == ["x"]
            (shown,) = (await admin.ask("GET", f"{FLEET}?nodes=0")).body["settings"]
            assert EngineSettings.model_validate(shown) == found

            assert (await admin.ask("POST", f"{FLEET}/vllm/unset", {"gpu_class": "A100"})).error == "setting_not_found"
            assert (await admin.ask("POST", f"{FLEET}/vllm/unset", {"version": "1.0"})).error == "in_use"
            assert (await admin.ask("POST", f"{FLEET}/vllm/unset", {"labels": {"ring": "canary"}})).status == 200
            assert (await admin.ask("POST", f"{FLEET}/vllm/unset", {"version": "2.0"})).status == 200
            found = await stored(cluster)
            assert found is not None
            assert ("2.0" in found.releases, len(found.overrides)) == (False, 1)
            assert (await admin.ask("POST", f"{FLEET}/vllm/unset", {})).status == 200
            assert await stored(cluster) is None
            assert await cluster.hand.get(keyspace.engine_lock("vllm", "1.0")) is None
            assert (await admin.ask("POST", f"{FLEET}/vllm/unset", {})).error == "setting_not_found"
            assert (await admin.ask("GET", f"{FLEET}?nodes=0")).body["settings"] == []

    asyncio.run(test())


@pytest.mark.parametrize(
    ("engine", "body", "says"),
    [
        ("vllm", {"version": "../x"}, "version"),
        ("vllm", {"version": "1", "lock": "vllm==1\n"}, "lock has no hash for 'vllm==1'"),
        ("vllm", {"version": "1", "lock": "#\n"}, "names no package"),
        ("vllm", {"version": "1", "lock": "a==1 --hash=sha256:0\n" + "#" * LOCK_LIMIT}, "more than"),
        ("vllm", {"version": "1", "archive": "/a", "sha256": "0" * 64}, "made of packages"),
        ("llamacpp", {"version": "1", "archive": "/a"}, "needs its sha256"),
        ("llamacpp", {"version": "1", "archive": "ftp://a", "sha256": "0" * 64}, "neither an address nor a path"),
        ("llamacpp", {"version": "1", "sha256": "0" * 64}, "name the archive"),
        ("llamacpp", {"version": "1", "build": True, "requirements": ["x"]}, "two ways"),
        ("llamacpp", {"version": "1", "build_options": ["-DX"]}, "are for build"),
        ("vllm", {"version": "1", "gpu": "H100"}, "gpu_class"),
    ],
)
def test_what_makes_no_sense_is_refused(engine: str, body: dict[str, Any], says: str) -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            answer = await admin.ask("POST", f"{FLEET}/{engine}/set", body)
            assert (answer.status, answer.error) == (422, "invalid")
            assert says in answer.body["error"]["message"]
            assert await stored(cluster, engine) is None

    asyncio.run(test())


def test_engines_that_nobody_installs_cannot_be_set() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            assert (await admin.ask("POST", f"{FLEET}/command/set", {"version": "1"})).error == "engine_not_found"

    asyncio.run(test())


def test_nodes_are_listed_told_to_install_and_to_remove() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin):
            body = (await admin.ask("GET", FLEET)).body
            ((there,),) = [each["engines"] for each in body["nodes"]]
            assert (there["engine"], there["used_by"], there["default"], there["lock_sha256"]) == (
                "vllm",
                ["m-1.0"],
                True,
                None,
            )
            assert [each["node"] for each in body["unreachable"]] == ["n2"]
            assert (await admin.ask("GET", NODE)).body["folder"] == "/e"

            steps = await lines(admin, {"version": "1.0", "reinstall": True})
            assert (agent.asked[-1].engine, agent.asked[-1].version, agent.asked[-1].reinstall) == ("vllm", "1.0", True)
            assert [each["fraction"] for each in steps] == [0.25, 1.0]
            assert steps[-1]["result"]["state"] == "installed"
            removed = await admin.ask("DELETE", f"{NODE}/vllm?version=1.0")
            assert removed.body == {"engine": "vllm", "versions": ["1.0"], "freed_bytes": 5}

            agent.refusal = (StatusCode.ABORTED, "no space")
            error = (await lines(admin, {}))[-1]["error"]
            assert (error["code"], error["message"]) == ("install_failed", "node n1: no space")
            agent.refusal = (StatusCode.FAILED_PRECONDITION, "engine vllm 1.0 is used by m-1.0")
            refused = await admin.ask("DELETE", f"{NODE}/vllm?version=1.0")
            assert (refused.status, refused.error) == (409, "in_use")
            agent.refuses_at_once, agent.refusal = True, (StatusCode.ABORTED, "no such version")
            refused = await admin.ask("POST", f"{NODE}/vllm/install", {})
            assert (refused.status, refused.error) == (409, "install_failed"), "the agent was reached, and it said no"

    asyncio.run(test())


def test_a_lock_that_is_set_while_all_is_taken_back_is_there_or_not_wished_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        settings, release = EngineStore(store, clock), EngineRelease(lock_sha256="0" * 64)

        async def lock(version: str) -> None:
            wish = EngineOverride(version=version)
            await settings.change("vllm", lambda old: with_version(old, wish, release, release_only=False), {version: LOCK})

        await lock("1.0")
        listed, between = store.range, ["2.0"]

        async def interrupted(*asked: Any, **how: Any) -> Any:
            found = await listed(*asked, **how)
            if between:
                # Set again, and with a lock of the same name as one that is to go.
                await lock("1.0")
                await lock(between.pop())
            return found

        monkeypatch.setattr(store, "range", interrupted)
        assert await settings.delete("vllm")
        monkeypatch.undo()
        found = await store.get(keyspace.engine("vllm"))
        wished = set() if found is None else set(EngineSettings.decode(found.value).releases)
        there = {
            keyspace.split(each.key, keyspace.ENGINE_LOCKS)[1] for each in (await store.range(keyspace.ENGINE_LOCKS)).items
        }
        assert there == wished
        assert not await settings.delete("sglang")
        await store.close()

    asyncio.run(test())


def test_slow_nodes_are_left_out_before_llmgwctl_gives_up_on_all() -> None:
    for resource in (engines, weights):
        assert resource.FLEET_LIMIT < ANSWER_SECONDS
        assert CONNECT_LIMIT + resource.ANSWER_LIMIT < ANSWER_SECONDS


def test_writers_at_the_same_time_lose_nothing() -> None:
    async def test() -> None:
        clock = FakeClock()
        one = MemoryStore(clock)
        other = MemoryStore(clock, server=one.server)

        async def write(store: MemoryStore, number: int) -> None:
            override = EngineOverride(version=f"{number}.0", labels={"n": str(number)})
            await EngineStore(store, clock).change(
                "vllm", lambda old: with_version(old, override, EngineRelease(), release_only=False)
            )

        await asyncio.gather(*(write(store, 2 * number + odd) for odd, store in enumerate((one, other)) for number in range(5)))
        found = await one.get(keyspace.engine("vllm"))
        assert found is not None
        assert {each.version for each in EngineSettings.decode(found.value).overrides} == {f"{each}.0" for each in range(10)}
        await one.close()
        await other.close()

    asyncio.run(test())


async def lines(admin: Admin, body: dict[str, Any]) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = URL(f"{NODE}/vllm/install", encoded=True)
    async with admin.http.request("POST", url, json=body, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
        return [json.loads(each) for each in (await answer.text()).splitlines()]
