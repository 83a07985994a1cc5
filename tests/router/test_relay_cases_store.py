"""The router behind a real etcd: what changes there is followed at once, and a broken watch is never believed for long."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_base.secrets import engine_key, new_cluster_secret
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord, EndpointRecord
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.raw_http import RawClient, ask, ask_chat, build, chat
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

SECRET = new_cluster_secret()


class Store:
    """Writes records as coordinator and agents would."""

    def __init__(self, etcd: EtcdServer) -> None:
        self.etcd = etcd
        self.put(keyspace.CLUSTER, ClusterRecord(id="c", name="test", created_at=0, engine_secret=SECRET).model_dump_json())

    def put(self, key: str, value: str) -> None:
        self.etcd.ctl("put", key, value)

    def endpoint(
        self,
        engine: FakeEngine,
        replica: str = "m-aaaaa",
        model: str = "m",
        epoch: int = 1,
        draining: bool = False,
        served_name: str | None = None,
    ) -> None:
        record = EndpointRecord(
            replica=replica,
            node="n1",
            model=model,
            epoch=epoch,
            url=engine.url,
            served_name=served_name or model,
            capabilities=["chat"],
            draining=draining,
        )
        self.put(keyspace.endpoint("n1", replica), record.model_dump_json())

    def remove(self, replica: str = "m-aaaaa") -> None:
        self.etcd.ctl("del", keyspace.endpoint("n1", replica))


@pytest.fixture
def store() -> Iterator[Store]:
    with EtcdServer("3.5") as etcd:
        yield Store(etcd)


def router(store: Store, folder: Path, **settings: object) -> RouterProcess:
    more = {
        "etcd.endpoints": f"[{store.etcd.endpoint}]",
        "insecure": "true",
        "state_dir": folder / "state",
        "health.probe_seconds": 0.3,
        **settings,
    }
    return RouterProcess({}, settings=more)


def served(router: RouterProcess, model: str = "m") -> bool:
    return ask_chat(router.port, model).status == 200


def test_endpoint_that_moves_to_another_port_is_followed_at_once(store: Store, tmp_path: Path) -> None:
    """The key stays, its value changes; epochs have keys of their own."""
    old_key, new_key = (engine_key(SECRET, "m-aaaaa", epoch) for epoch in (1, 2))
    with FakeEngine("m", api_key=old_key) as old, FakeEngine("m", api_key=new_key) as new:
        store.endpoint(old)
        with router(store, tmp_path) as running:
            wait_until(lambda: served(running), within=15, what="the first address")
            store.endpoint(new, epoch=2)
            began = time.monotonic()
            wait_until(lambda: served(running) and new.requests, within=15, what="the new address")
            assert time.monotonic() - began < 5
            before = len(old.requests)
            assert all(served(running) for _ in range(10))
            assert len(old.requests) == before


def test_endpoint_deleted_and_compacted_while_the_store_was_away_is_gone_after_its_return(store: Store, tmp_path: Path) -> None:
    with FakeEngine("m", api_key=engine_key(SECRET, "m-aaaaa", 1)) as engine, FakeEngine("m") as ghost:
        store.endpoint(engine)
        store.endpoint(ghost, "m-bbbbb")
        ghost.engine.api_key = engine_key(SECRET, "m-bbbbb", 1)
        with router(store, tmp_path) as running:
            wait_until(lambda: ask(running.port, "GET", "/health").json()["replicas"] == 2, within=15, what="two replicas")
            store.etcd.sigstop()
            wait_until(lambda: ask(running.port, "GET", "/health").json()["stale"], within=30, what="staleness in /health")
            assert served(running), "requests must go on while the store is away"
            store.etcd.sigcont()
            store.remove("m-bbbbb")
            revision = store.etcd.ctl("get", keyspace.CLUSTER, "-w", "fields")
            number = next(line.split(":")[1].strip() for line in revision.splitlines() if line.startswith('"Revision"'))
            store.etcd.ctl("compact", number)
            ghost.stop()
            wait_until(lambda: ask(running.port, "GET", "/health").json()["replicas"] == 1, within=20, what="the ghost gone")
            wait_until(lambda: not ask(running.port, "GET", "/health").json()["stale"], within=20, what="up to date")
            assert all(served(running) for _ in range(10))


def test_cold_start_without_the_store_serves_the_last_table_and_says_so(store: Store, tmp_path: Path) -> None:
    with FakeEngine("m", api_key=engine_key(SECRET, "m-aaaaa", 1)) as engine:
        store.endpoint(engine)
        with router(store, tmp_path) as first:
            wait_until(lambda: served(first), within=15, what="serving")
            wait_until(lambda: any((tmp_path / "state").iterdir()), within=15, what="the table on disk")
        store.etcd.kill()
        with router(store, tmp_path) as second:
            wait_until(lambda: served(second), within=15, what="serving from the last table")
            assert ask(second.port, "GET", "/health").json()["stale"] is True
        nothing = router(store, tmp_path / "other").start(ready=False)
        try:
            assert ask(nothing.port, "GET", "/health").status == 503
            assert ask_chat(nothing.port).status in (404, 503)
        finally:
            nothing.stop()


def test_draining_endpoint_finishes_and_gets_nothing_new(store: Store, tmp_path: Path) -> None:
    one = FakeEngine("m", api_key=engine_key(SECRET, "m-aaaaa", 1), tokens=30, token_seconds=0.03)
    with one, FakeEngine("m", api_key=engine_key(SECRET, "m-bbbbb", 1)) as two:
        store.endpoint(one)
        with router(store, tmp_path) as running:
            wait_until(lambda: served(running), within=15, what="serving")
            with RawClient(running.port) as client:
                client.send(build("POST", "/v1/chat/completions", chat(stream=True)))
                client.receive_until(b"w0")
                store.endpoint(two, "m-bbbbb")
                store.endpoint(one, draining=True)
                wait_until(lambda: served(running) and two.requests, within=10, what="the other one in use")
                before = len(one.requests)
                assert all(served(running) for _ in range(5))
                assert len(one.requests) == before
                assert client.receive_until(b"[DONE]")


def test_router_that_was_frozen_does_not_fail_requests_over_what_went_meanwhile(store: Store, tmp_path: Path) -> None:
    """Frozen for a while, as a paused virtual machine is; an endpoint and its engine go meanwhile."""
    with (
        FakeEngine("m", api_key=engine_key(SECRET, "m-aaaaa", 1)) as stays,
        FakeEngine("m", api_key=engine_key(SECRET, "m-bbbbb", 1)) as goes,
    ):
        store.endpoint(stays)
        store.endpoint(goes, "m-bbbbb")
        with router(store, tmp_path) as running:
            wait_until(lambda: ask(running.port, "GET", "/health").json()["replicas"] == 2, within=15, what="two replicas")
            assert all(served(running) for _ in range(4))
            running.process.send_signal(signal.SIGSTOP)
            store.remove("m-bbbbb")
            goes.stop()
            running.process.send_signal(signal.SIGCONT)
            assert all(served(running) for _ in range(10))
            wait_until(lambda: ask(running.port, "GET", "/health").json()["replicas"] == 1, within=15, what="one replica")


def test_what_no_replica_can_do_is_a_4xx_and_names_of_engines_are_put_in(store: Store, tmp_path: Path) -> None:
    with FakeEngine("inner", api_key=engine_key(SECRET, "m-aaaaa", 1)) as engine:
        store.endpoint(engine, model="org/m", served_name="inner")
        with router(store, tmp_path) as running:
            wait_until(lambda: served(running, "org/m"), within=15, what="serving")
            request = engine.requests[-1].json()
            assert request["model"] == "inner"
            assert request["messages"] == chat()["messages"]
            seen = len(engine.requests)
            answer = ask(running.port, "POST", "/v1/embeddings", {"model": "org/m", "input": "x"})
            assert 400 <= answer.status < 500
            assert "org/m" in answer.error()["message"]
            assert ask(running.port, "POST", "/v1/chat/completions", chat("inner")).status == 404
            assert len(engine.requests) == seen
            assert ask(running.port, "GET", "/v1/models/org%2Fm").json()["id"] == "org/m"
