"""Requests beyond what the replicas take at once wait in line: bounded, with a deadline, the urgent ones first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from llmgw_base.secrets import engine_key, new_cluster_secret
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord, EndpointRecord
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_wire import Exchange, Gate
from llmgw_testing.raw_http import Answer, RawClient, ask_chat, build, chat, metric
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

SECRET = new_cluster_secret()


@contextmanager
def limited(folder: Path, most: int, **settings: object) -> Iterator[tuple[RouterProcess, FakeEngine]]:
    """A router in front of one replica that takes `most` requests at once."""
    with EtcdServer("3.5") as etcd, FakeEngine("m", api_key=engine_key(SECRET, "m-aaaaa", 1)) as engine:
        cluster = ClusterRecord(id="c", name="test", created_at=0, engine_secret=SECRET)
        record = EndpointRecord(
            replica="m-aaaaa",
            node="n1",
            model="m",
            epoch=1,
            url=engine.url,
            served_name="m",
            capabilities=["chat"],
            max_concurrency=most,
        )
        etcd.ctl("put", keyspace.CLUSTER, cluster.model_dump_json())
        etcd.ctl("put", keyspace.endpoint("n1", "m-aaaaa"), record.model_dump_json())
        more = {"etcd.endpoints": f"[{etcd.endpoint}]", "insecure": "true", "state_dir": folder, **settings}
        with RouterProcess({}, settings=more) as router:
            wait_until(lambda: ask_chat(router.port).status == 200, within=15, what="serving")
            engine.reset_state()
            yield router, engine


def hold(engine: FakeEngine, gate: Gate) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.wait(gate)
        await engine.engine.answer(exchange)

    engine.default = script


def sent(router: RouterProcess, name: str, *headers: str) -> RawClient:
    client = RawClient(router.port, limit=30)
    client.send(build("POST", "/v1/chat/completions", chat(user=name), *headers))
    return client


def queued(router: RouterProcess) -> float:
    return metric(router.port, "llmgw_router_model_queued", model="m")


def in_line(router: RouterProcess, count: int) -> bool:
    return queued(router) == count


def finish(client: RawClient) -> Answer:
    with client:
        return client.answer()


def test_the_line_is_bounded_and_told_with_retry_after(tmp_path: Path) -> None:
    with limited(tmp_path, 2, **{"queue.length": 3}) as (router, engine):
        gate = Gate()
        hold(engine, gate)
        clients = [sent(router, f"{number}") for number in range(5)]
        wait_until(lambda: queued(router) == 3, within=15, what="three in line")
        answer = ask_chat(router.port)
        assert answer.status == 429
        assert answer.error()["type"] == "rate_limit_error"
        assert int(answer.header("retry-after") or 0) >= 1
        assert len(engine.requests) == 2
        gate.open()
        assert [finish(client).status for client in clients] == [200] * 5
        assert queued(router) == 0


def test_the_line_has_a_deadline(tmp_path: Path) -> None:
    with limited(tmp_path, 1, **{"queue.seconds": 0.5}) as (router, engine):
        gate = Gate()
        hold(engine, gate)
        first = sent(router, "first")
        engine.wait_request()
        answer = ask_chat(router.port)
        assert answer.status == 503
        assert answer.header("retry-after")
        gate.open()
        assert finish(first).status == 200
        assert len(engine.requests) == 1


def test_urgent_requests_go_first_and_those_who_left_not_at_all(tmp_path: Path) -> None:
    with limited(tmp_path, 1) as (router, engine):
        gate = Gate()
        hold(engine, gate)
        clients = [sent(router, "first")]
        engine.wait_request()
        for place, name in enumerate(("low", "normal", "gone", "high"), 1):
            clients.append(sent(router, name, f"x-llmgw-priority: {'low' if name == 'gone' else name}"))
            wait_until(partial(in_line, router, place), within=15, what=f"{name} in line")
        clients.pop(3).close()
        wait_until(lambda: queued(router) == 3, within=15, what="the one who left is out of the line")
        gate.open()
        threads = [threading.Thread(target=finish, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [request.json()["user"] for request in engine.requests] == ["first", "high", "normal", "low"]
