"""The admin API: what it answers, refuses and keeps."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llmgw_base.etcd.errors import StoreFullError
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.specs import Specs
from llmgw_coordinator.state import Mirror
from llmgw_proto import keyspace
from llmgw_proto.records import EndpointRecord, ModelSpec, RouterLoad, RouterRecord, ShardState
from llmgw_testing.clock import settle
from llmgw_testing.coordinators import TOKEN, Admin, Answer, Cluster, Coordinator, admin_of
from llmgw_testing.wait import eventually
from llmgw_testing.worlds import model

SPEC: dict[str, Any] = {"source": "/w.gguf", "profiles": [{"engine": "llamacpp"}], "replicas": {"min": 2}}
MODELS = "/admin/v1/models"


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Cluster, Coordinator, Admin]]:
    cluster = Cluster()
    await cluster.add_node("n1")
    await cluster.add_node("n2")
    async with cluster.coordinator() as coordinator, admin_of(coordinator, cluster.clock, **options) as admin:
        await cluster.live()
        yield cluster, coordinator, admin


def test_a_model_is_applied_seen_scaled_and_removed() -> None:
    async def body() -> None:
        async with serving() as (cluster, _, admin):
            path = f"{MODELS}/org%2Fm"
            made = await admin.ask("PUT", path, SPEC)
            assert (made.status, made.body["name"], made.body["wanted"], made.body["state"]) == (201, "org/m", 2, "Progressing")
            assert made.body["spec"]["generation"] == 1
            again = await admin.ask("PUT", path, {**SPEC, "name": "org/m"})
            assert (again.status, again.body["spec"]["generation"]) == (200, 1), "nothing changed"
            await cluster.live()
            await cluster.agents()
            await cluster.live()
            seen = (await admin.ask("GET", path)).body
            assert (seen["state"], seen["ready"], seen["reason"], len(seen["replicas"])) == ("Ready", 2, "", 2)
            first = seen["replicas"][0]
            assert (first["model"], first["state"], first["epoch"], first["engine"]) == ("org/m", "Ready", 1, "llamacpp")
            assert (await admin.ask("GET", f"/admin/v1/replicas/{first['id']}")).body == first
            scaled = await admin.ask("POST", path + "/scale", {"replicas": 1})
            assert (scaled.status, scaled.body["wanted"], scaled.body["spec"]["generation"]) == (200, 1, 2)
            await cluster.live()
            await cluster.agents()
            await cluster.live()
            gone = await admin.ask("DELETE", path)
            assert (gone.status, gone.body["name"], len(gone.body["replicas"])) == (202, "org/m", 1)
            await cluster.live()
            removing = (await admin.ask("GET", path)).body
            assert (removing["state"], removing["spec"], removing["wanted"]) == ("Removing", None, 0)
            assert removing["replicas"][0]["draining"] is True
            await cluster.agents()
            await cluster.live()
            assert (await admin.ask("GET", path)).status == 404
            assert (await admin.ask("DELETE", path)).error == "model_not_found"

    asyncio.run(body())


def test_what_is_read_back_can_be_applied_again() -> None:
    async def body() -> None:
        async with serving() as (_, _, admin):
            made = await admin.ask("PUT", f"{MODELS}/m", SPEC)
            again = await admin.ask("PUT", f"{MODELS}/m", made.body["spec"])
            assert (again.status, again.body["spec"]) == (200, made.body["spec"])

    asyncio.run(body())


@pytest.mark.parametrize(
    ("body", "status", "path", "message"),
    [
        ({**SPEC, "replicaz": 1}, 422, "replicaz", "did you mean replicas?"),
        ({**SPEC, "profiles": [{"engine": "llamacpp", "gpu": 1}]}, 422, "profiles.0.gpu", "did you mean gpus?"),
        ({**SPEC, "replicas": {"min": -1}}, 422, "replicas.min", "greater than or equal to 0"),
        ({**SPEC, "replicas": {"min": 3, "max": 2}}, 422, "replicas", "max (2) is below min (3)"),
        ({**SPEC, "name": "other"}, 422, "name", "the path says 'm'"),
        ({"profiles": [{"engine": "llamacpp"}]}, 422, "body", "source is missing"),
        ({"source": "/w"}, 422, "profiles", "missing; set it"),
        ({**SPEC, "profiles": []}, 422, "profiles", "at least 1 item"),
        ({**SPEC, "profiles": [{"engine": "magic"}]}, 422, "profiles.0.engine", "'llamacpp'"),
        ({**SPEC, "profiles": [{"engine": "llamacpp", "memory": "much"}]}, 422, "profiles.0.memory", "not a size"),
        ({**SPEC, "profiles": [{"engine": "llamacpp", "memory": "9" * 400 + "GB"}]}, 422, "profiles.0.memory", "exbibyte"),
        ({**SPEC, "profiles": [{"engine": "llamacpp", "args": ["--port", "1"]}]}, 422, "profiles.0.args", "--port is reserved"),
        (
            {**SPEC, "profiles": [{"engine": "llamacpp", "args": ["--host=0.0.0.0"]}]},
            422,
            "profiles.0.args",
            "--host is reserved",
        ),
        ({**SPEC, "profiles": [{"engine": "llamacpp", "env": {"LLMGW_X": "1"}}]}, 422, "profiles.0.env", "LLMGW_X is reserved"),
        ({"profiles": [{"engine": "command", "command": ["serve"]}]}, 422, "profiles.0.command", "{port} is missing"),
        ([], 400, "", "the body is a JSON list"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_with_the_path_of_the_field(body: Any, status: int, path: str, message: str) -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            answer = await admin.ask("PUT", f"{MODELS}/m", body)
            assert answer.status == status
            error = answer.body["error"]
            assert error["remedy"]
            assert message in error["message"]
            if path:
                assert error["details"][0]["path"] == path
            assert (await cluster.hand.range(keyspace.MODELS)).items == ()

    asyncio.run(test())


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b'{"name": "\\ud800"}', b"[" * 100_000, b'{"a":' * 50_000],
    ids=["empty", "cut", "no UTF-8", "NaN", "half a character", "deep list", "deep object"],
)
def test_what_is_not_json_is_a_400(raw: bytes) -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            answer = await admin.ask("PUT", f"{MODELS}/m", data=raw)
            assert (answer.status, answer.error) == (400, "bad_json")

    asyncio.run(test())


def test_a_body_beyond_the_limit_is_a_413() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            answer = await admin.ask("PUT", f"{MODELS}/m", data=io.BytesIO(b'{"source": "' + b"x" * 2**20 + b'"}'))
            assert (answer.status, answer.error) == (413, "body_too_large")

    asyncio.run(test())


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v1/models/..",
        "/admin/v1/models/%ff",
        "/admin/v1/models/a%00b",
        "/admin/v1/models/%2e%2e%2fstatus",
        "/admin/v1/nope",
    ],
)
def test_odd_paths_are_404s_for_every_method(path: str) -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            for method in ("GET", "DELETE"):
                answer = await admin.ask(method, path)
                assert answer.status in (404, 405), (method, answer.body)
                assert answer.body["error"]["remedy"]

    asyncio.run(test())


def test_a_wrong_method_names_those_there_are() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            answer = await admin.ask("PATCH", f"{MODELS}/m", {})
            assert (answer.status, answer.error) == (405, "wrong_method")
            assert "PUT" in answer.headers["Allow"]

    asyncio.run(test())


def test_scaling_is_checked_like_applying() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            path = f"{MODELS}/m/scale"
            assert (await admin.ask("POST", path, {"replicas": 1})).error == "model_not_found"
            await admin.ask("PUT", f"{MODELS}/m", SPEC)
            for wrong in ({"replicas": -1}, {"replicas": "many"}, {"replicas": 10_001}, {"replica": 1}, {}):
                assert (await admin.ask("POST", path, wrong)).status == 422

    asyncio.run(test())


def test_nobody_gets_in_without_the_token() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "\xe9"):
                for method, path in (("GET", "/admin/v1/status"), ("PUT", f"{MODELS}/m"), ("GET", "/admin/v1/replicas/x/logs")):
                    answer = await admin.ask(method, path, token=token)
                    assert answer.status in (401, 429)
            basic = await admin.ask("GET", "/admin/v1/status", token=None, headers={"Authorization": f"Basic {TOKEN}"})
            assert basic.status in (401, 429)
            for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
                assert (await admin.ask("GET", path, token=None)).status == 200

    asyncio.run(test())


def test_who_guesses_is_turned_away_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(failures_per_minute=3) as (cluster, _, admin):
            answers = [(await admin.ask("GET", "/admin/v1/status", token=f"guess-{each}")).status for each in range(6)]
            assert answers == [401, 401, 401, 429, 429, 429]
            right = await admin.ask("GET", "/admin/v1/status")
            assert (right.status, right.error) == (429, "too_many_failures")
            assert 1 <= int(right.headers["Retry-After"]) <= 20
            await cluster.live(21)
            assert (await admin.ask("GET", "/admin/v1/status")).status == 200

    asyncio.run(test())
    assert "guess-" not in caplog.text
    assert "guess-" not in json.dumps([getattr(each, "fields", {}) for each in caplog.records])


def test_writes_are_audited_and_reads_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="llmgw_coordinator.audit")

    async def test() -> None:
        async with serving() as (_, _, admin):
            await admin.ask("PUT", f"{MODELS}/org%2Fm", SPEC)
            await admin.ask("GET", f"{MODELS}/org%2Fm")
            await admin.ask("PUT", f"{MODELS}/m", {})
            await admin.ask("DELETE", f"{MODELS}/org%2Fm", token="wrong")

    asyncio.run(test())
    lines = [each.fields for each in caplog.records if each.name == "llmgw_coordinator.audit"]  # type: ignore[attr-defined]
    assert [(each["method"], each["path"], each["status"], each["outcome"]) for each in lines] == [
        ("PUT", "/admin/v1/models/org%2Fm", 201, "done"),
        ("PUT", "/admin/v1/models/m", 422, "invalid"),
        ("DELETE", "/admin/v1/models/org%2Fm", 401, "unauthorized"),
    ]
    assert {each["client"] for each in lines} == {"127.0.0.1"}
    assert (lines[0]["model"], lines[0]["generation"], lines[0]["replicas"], lines[0]["changed"]) == ("org/m", 1, 2, True)


def test_a_write_whose_client_leaves_is_audited_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="llmgw_coordinator.audit")

    async def test() -> None:
        async with serving() as (_, coordinator, admin):
            asked, never = asyncio.Event(), asyncio.Event()

            async def hanging(*args: Any, **kwargs: Any) -> bool:
                asked.set()
                return await never.wait()

            coordinator.store.txn = hanging  # type: ignore[method-assign]  # a fault
            asking = asyncio.create_task(admin.ask("PUT", f"{MODELS}/m", SPEC))
            await asked.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await eventually(lambda: "may have been made" in str(outcomes()), within=10, what="the audit line")

    def outcomes() -> list[object]:
        return [getattr(each, "fields", {}).get("outcome") for each in caplog.records]

    asyncio.run(test())


def test_while_etcd_is_away_reads_come_from_memory_and_writes_are_refused() -> None:
    async def test() -> None:
        async with serving() as (cluster, coordinator, admin):
            await admin.ask("PUT", f"{MODELS}/m", SPEC)
            await cluster.live()
            coordinator.store.down()
            await cluster.live(7)
            status = await admin.ask("GET", "/admin/v1/status")
            assert (status.status, status.body["stale"]) == (200, True)
            assert float(status.headers["x-llmgw-stale"]) >= 6
            assert "etcd does not answer" in status.body["problems"][0]
            assert (await admin.ask("GET", f"{MODELS}/m")).headers["x-llmgw-stale"]
            for method, path, what in (
                ("PUT", f"{MODELS}/m", SPEC),
                ("POST", f"{MODELS}/m/scale", {"replicas": 1}),
                ("DELETE", f"{MODELS}/m", None),
            ):
                answer = await admin.ask(method, path, what)
                assert (answer.status, answer.error) == (503, "store_unavailable")
                assert int(answer.headers["Retry-After"]) >= 1
            ready = await admin.ask("GET", "/readyz")
            assert (ready.status, ready.body["stale"]) == (200, True)
            coordinator.store.up()
            await cluster.live(2)
            assert (await admin.ask("POST", f"{MODELS}/m/scale", {"replicas": 1})).status == 200
            assert "x-llmgw-stale" not in (await admin.ask("GET", "/admin/v1/status")).headers

    asyncio.run(test())


def test_a_full_etcd_is_told_as_such() -> None:
    async def test() -> None:
        async with serving() as (_, coordinator, admin):
            original = coordinator.store.txn

            async def full(*args: Any, **kwargs: Any) -> bool:
                raise StoreFullError("etcd: mvcc: database space exceeded")

            coordinator.store.txn = full  # type: ignore[method-assign]  # a fault
            answer = await admin.ask("PUT", f"{MODELS}/m", SPEC)
            coordinator.store.txn = original  # type: ignore[method-assign]  # as it was
            assert (answer.status, answer.error) == (503, "store_full")
            assert "etcd is out of space" in answer.body["error"]["message"]
            assert "defragment" in answer.body["error"]["remedy"]

    asyncio.run(test())


def test_the_status_says_when_the_leader_cannot_write_for_lack_of_space() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            await admin.ask("PUT", f"{MODELS}/m", SPEC)
            cluster.server.full = True
            await cluster.live()
            problems = (await admin.ask("GET", "/admin/v1/status")).body["problems"]
            assert any("etcd is out of space" in each for each in problems)
            cluster.server.full = False
            await cluster.live(10)
            assert (await admin.ask("GET", "/admin/v1/status")).body["problems"] == []
            assert len(await cluster.replicas()) == 2

    asyncio.run(test())


def test_a_store_that_is_not_the_one_before_is_not_written_into() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            cluster.server.wipe()
            await cluster.live(5)
            answer = await admin.ask("PUT", f"{MODELS}/m", SPEC)
            assert (answer.status, answer.error) == (503, "store_frozen")
            assert (await admin.ask("GET", "/admin/v1/nodes")).body["nodes"]

    asyncio.run(test())


def test_before_anything_is_known_reads_are_503() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.server.stop()
        store, election = cluster.candidate("c1")
        assert isinstance(election, Election)
        async with cluster.coordinator("c1") as coordinator, admin_of(coordinator, cluster.clock) as admin:
            assert (await admin.ask("GET", "/admin/v1/status")).error == "store_unavailable"
            assert (await admin.ask("GET", "/readyz")).status == 503
            assert (await admin.ask("GET", "/healthz")).status == 200
            assert (await admin.ask("GET", "/metrics")).status == 200
        await store.close()

    asyncio.run(test())


def test_concurrent_writers_lose_nothing() -> None:
    async def test() -> None:
        async with serving() as (cluster, coordinator, admin):
            await admin.ask("PUT", f"{MODELS}/m", SPEC)
            changed = {**SPEC, "drain_seconds": 5}
            answers = await asyncio.gather(
                *(admin.ask("POST", f"{MODELS}/m/scale", {"replicas": count}) for count in range(3, 13)),
                *(coordinator.specs.scale("m", count) for count in range(13, 23)),
                admin.ask("PUT", f"{MODELS}/m", {**changed, "replicas": {"min": 30}}),
            )
            assert {each.status for each in answers if isinstance(each, Answer)} == {200}
            found = await cluster.hand.get(keyspace.model("m"))
            assert found is not None
            spec = ModelSpec.decode(found.value)
            assert spec.drain_seconds == 5, "no scaling undid the other change"
            assert spec.generation == 22, "each of the writers was one change"

    asyncio.run(test())


def test_a_field_of_a_newer_version_survives_scaling() -> None:
    async def test() -> None:
        async with serving() as (cluster, coordinator, _):
            newer = model("m").model_copy(update={"schedule": {"nights": 0}})
            await cluster.apply(newer)
            await coordinator.specs.scale("m", 3)
            found = await cluster.hand.get(keyspace.model("m"))
            assert found is not None
            assert json.loads(found.value)["schedule"] == {"nights": 0}

    asyncio.run(test())


def test_a_lost_answer_to_applying_is_found_out_and_not_repeated() -> None:
    async def test() -> None:
        async with serving() as (cluster, coordinator, admin):
            coordinator.store.lose_next_answer()
            made = await admin.ask("PUT", f"{MODELS}/m", SPEC)
            assert (made.status, made.body["spec"]["generation"]) == (201, 1)
            coordinator.store.lose_next_answer()
            gone = await admin.ask("DELETE", f"{MODELS}/m")
            assert gone.status == 202
            assert await cluster.hand.get(keyspace.model("m")) is None

    asyncio.run(test())


def test_an_unreadable_spec_shows_as_failed_and_can_be_replaced() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            await cluster.write_raw(keyspace.model("bad"), b'{"profiles": 7}')
            await admin.ask("PUT", f"{MODELS}/good", SPEC)
            await cluster.live()
            bad = (await admin.ask("GET", f"{MODELS}/bad")).body
            assert (bad["state"], bad["spec"]) == ("Failed", None)
            assert "cannot be read" in bad["reason"]
            assert len(await cluster.replicas("good")) == 2
            assert any("models/bad" in each for each in (await admin.ask("GET", "/admin/v1/status")).body["problems"])
            assert (await admin.ask("POST", f"{MODELS}/bad/scale", {"replicas": 1})).error == "unreadable_spec"
            assert (await admin.ask("PUT", f"{MODELS}/bad", SPEC)).status == 200
            await cluster.live()
            assert (await admin.ask("GET", f"{MODELS}/bad")).body["state"] == "Progressing"

    asyncio.run(test())


def test_the_status_page_tells_of_everything() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            await admin.ask("PUT", f"{MODELS}/m", SPEC)
            router = RouterRecord(
                id="r1", address="http://r1:8080", version="0", started_at=0, models={"m": RouterLoad(running=3)}
            )
            await cluster.hand.put(keyspace.router("r1"), router.encode())
            await cluster.vanish("n2")
            await cluster.live(2)
            status = (await admin.ask("GET", "/admin/v1/status")).body
            assert status["cluster"]["name"] == "test"
            assert (status["leader"], status["stale"]) == ("c1", False)
            assert [(each["id"], each["leader"]) for each in status["coordinators"]] == [("c1", True)]
            assert status["routers"][0]["models"]["m"]["running"] == 3
            assert status["nodes"] == {"total": 2, "alive": 1}
            assert [(each["name"], each["wanted"]) for each in status["models"]] == [("m", 2)]
            assert "spec" not in status["models"][0]
            assert any("node n2 is away" in each for each in status["problems"])

    asyncio.run(test())


def test_nodes_show_what_is_committed_on_them() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            spec = {**SPEC, "profiles": [{"engine": "llamacpp", "memory": "2GiB"}]}
            await admin.ask("PUT", f"{MODELS}/m", spec)
            await cluster.live()
            nodes = (await admin.ask("GET", "/admin/v1/nodes")).body["nodes"]
            assert [(each["name"], each["alive"], each["memory_committed_bytes"]) for each in nodes] == [
                ("n1", True, 2 * 2**30),
                ("n2", True, 2 * 2**30),
            ]
            one = (await admin.ask("GET", "/admin/v1/nodes/n1")).body
            assert one == nodes[0]
            assert (len(one["replicas"]), one["inventory"]["hostname"], one["status"]) == (1, "n1", None)
            assert (await admin.ask("GET", "/admin/v1/nodes/n9")).error == "node_not_found"

    asyncio.run(test())


def test_replicas_show_where_they_answer_and_can_be_listed_by_model() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin):
            for name in ("a", "b"):
                await admin.ask("PUT", f"{MODELS}/{name}", {**SPEC, "replicas": {"min": 1}})
            await cluster.live()
            (wish,) = await cluster.replicas("a")
            (name,) = await cluster.assigned("a")
            await cluster.report(name, wish, ShardState.READY, pid=42, port=7001, restarts=2, started_at=5.0, log_path="/l")
            live = EndpointRecord(
                replica=wish.replica, node=name, model="a", epoch=1, url="http://h:7001", served_name="a", capabilities=["chat"]
            )
            await cluster.hand.put(keyspace.endpoint(name, wish.replica), live.encode())
            await cluster.live()
            (shown,) = (await admin.ask("GET", "/admin/v1/replicas?model=a")).body["replicas"]
            assert (shown["url"], shown["pid"], shown["port"], shown["restarts"]) == ("http://h:7001", 42, 7001, 2)
            assert (shown["node"], shown["draining"], shown["log_path"]) == (name, False, "/l")
            both = (await admin.ask("GET", "/admin/v1/replicas")).body["replicas"]
            assert {(each["model"], each["state"]) for each in both} == {("a", "Ready"), ("b", "Assigned")}
            assert (await admin.ask("GET", "/admin/v1/replicas/nope")).error == "replica_not_found"

    asyncio.run(test())


def test_metrics_tell_of_leading_models_replicas_and_staleness() -> None:
    async def test() -> None:
        async with serving() as (cluster, coordinator, admin):
            await admin.ask("PUT", f"{MODELS}/m", SPEC)
            await cluster.live()
            await cluster.agents()
            await cluster.live()
            text = (await admin.ask("GET", "/metrics")).body
            assert "llmgw_coordinator_leader 1.0" in text
            assert 'llmgw_models{state="Ready"} 1.0' in text
            assert 'llmgw_replicas{state="Ready"} 2.0' in text
            assert 'llmgw_nodes{alive="true"} 2.0' in text
            assert "llmgw_coordinator_store_stale_seconds 0.0" in text
            assert 'llmgw_coordinator_admin_requests_total{method="PUT",status="201"} 1.0' in text
            coordinator.store.down()
            await cluster.live(20)
            text = (await admin.ask("GET", "/metrics")).body
            assert "llmgw_coordinator_leader 0.0" in text
            assert "llmgw_coordinator_store_stale_seconds 0.0" not in text

    asyncio.run(test())


def test_a_fault_of_the_coordinator_is_a_500_without_a_traceback_for_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as (_, coordinator, admin):

            def broken(self: Mirror) -> None:
                raise ZeroDivisionError("secret detail")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Mirror, "view", broken)
                answer = await admin.ask("GET", "/admin/v1/status")
            assert (answer.status, answer.error) == (500, "internal_error")
            assert "secret detail" not in json.dumps(answer.body)
            assert isinstance(coordinator.specs, Specs)
            await settle()

    asyncio.run(test())
    assert "secret detail" in caplog.text
