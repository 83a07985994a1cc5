"""Real coordinators on a real etcd: who leads when one dies, and what the API does meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llmgw_base.clock import SystemClock
from llmgw_base.etcd.api import PutOp
from llmgw_base.etcd.client import EtcdStore
from llmgw_coordinator.errors import NotLeaderError
from llmgw_coordinator.leader.fence import Term, fenced
from llmgw_proto import keyspace
from llmgw_proto.records import AliveRecord, AssignmentRecord
from llmgw_testing.stack import Daemon, Stack
from llmgw_testing.wait import wait_until
from llmgw_testing.worlds import node

TTL = 2
MODELS = "/admin/v1/models"
SPEC: dict[str, Any] = {"source": "/w.gguf", "profiles": [{"engine": "llamacpp"}]}


def ask(stack: Stack, daemon: Daemon, method: str, path: str, body: object = None) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers in lower case; status 0 when nothing answers."""
    headers = {"authorization": f"Bearer {stack.token_file.read_text().strip()}"}
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(
            urllib.request.Request(daemon.url + path, data, headers, method=method), timeout=20
        ) as answer:
            return answer.status, json.load(answer), {key.lower(): value for key, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), {key.lower(): value for key, value in error.headers.items()}
    except OSError:
        return 0, None, {}


def leads(stack: Stack, daemon: Daemon) -> bool:
    return bool(ask(stack, daemon, "GET", "/readyz")[1].get("leader"))


def seconds_until_it_leads(stack: Stack, daemon: Daemon, since: float) -> float:
    wait_until(lambda: leads(stack, daemon), within=20, what=f"{daemon.name} to lead", every=0.01)
    return time.monotonic() - since


def add_node(stack: Stack, name: str) -> None:
    """As an agent does, but without a lease."""
    inventory = node(name).inventory
    assert inventory is not None
    alive = AliveRecord(node=name, version="0", started_at=0.0, pid=1, grpc_address="127.0.0.1:1")
    stack.etcd.ctl("put", keyspace.inventory(name), inventory.encode().decode())
    stack.etcd.ctl("put", keyspace.alive(name), alive.encode().decode())


def assigned(stack: Stack) -> list[AssignmentRecord]:
    found = json.loads(stack.etcd.ctl("get", "--prefix", keyspace.ASSIGNMENTS, "-w", "json"))
    return [AssignmentRecord.decode(base64.b64decode(each["value"])) for each in found.get("kvs", [])]


def test_a_killed_leader_is_followed_within_lease_and_2_s_and_a_stopped_one_within_1_s(tmp_path: Path) -> None:
    with Stack(tmp_path, leader_ttl=TTL) as stack:
        first, second = stack.coordinator("c1"), stack.coordinator("c2")
        wait_until(lambda: leads(stack, first), within=20, what="the first one to lead")
        assert not leads(stack, second)
        add_node(stack, "n1")
        assert ask(stack, second, "PUT", f"{MODELS}/m", SPEC)[0] == 201, "the standby takes writes as well"
        wait_until(lambda: len(assigned(stack)) == 1, within=10, what="the placement")

        killed = time.monotonic()
        first.kill()
        took = seconds_until_it_leads(stack, second, killed)
        print(f"kill -9: the other leads after {took:.2f} s")
        assert took <= TTL + 2

        first.start()
        wait_until(lambda: ask(stack, first, "GET", "/readyz")[0] == 200, within=20, what="the first one to be back")
        wait_until(lambda: stack.etcd.ctl("get", "--keys-only", keyspace.leader("c1")), within=20, what="it to stand again")
        assert not leads(stack, first)
        stopped = time.monotonic()
        second.send(signal.SIGTERM)
        took = seconds_until_it_leads(stack, first, stopped)
        print(f"SIGTERM: the other leads after {took:.2f} s")
        assert took < 1
        assert second.process.wait(20) == 0
        assert ask(stack, first, "POST", f"{MODELS}/m/scale", {"replicas": 3})[0] == 200
        wait_until(lambda: len(assigned(stack)) == 3, within=10, what="the new leader to place")


def test_a_leader_frozen_for_longer_than_its_lease_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with Stack(tmp_path, leader_ttl=TTL) as stack:
        first, second = stack.coordinator("c1"), stack.coordinator("c2")
        wait_until(lambda: leads(stack, first), within=20, what="the first one to lead")
        first.send(signal.SIGSTOP)
        # Work that both will find to be theirs.
        add_node(stack, "n1")
        assert ask(stack, second, "PUT", f"{MODELS}/m", {**SPEC, "replicas": {"min": 3}})[0] == 201
        seconds_until_it_leads(stack, second, time.monotonic())
        wait_until(lambda: len(assigned(stack)) == 3, within=10, what="the placement")
        placed = {each.replica for each in assigned(stack)}
        first.send(signal.SIGCONT)
        wait_until(lambda: "leads no longer" in first.log(), within=20, what="the first one to notice")
        wait_until(lambda: stack.etcd.ctl("get", "--keys-only", keyspace.leader("c1")), within=20, what="it to stand again")
        assert {each.replica for each in assigned(stack)} == placed
        assert leads(stack, second)
        assert not leads(stack, first)


def test_a_write_fenced_by_a_key_that_is_gone_is_refused_by_etcd_itself(tmp_path: Path) -> None:
    async def body(stack: Stack) -> None:
        store = await EtcdStore.connect(stack.etcd.section(), clock=SystemClock())
        try:
            lease = await store.grant(60)
            key = keyspace.leader("old")
            await store.put(key, b"{}", lease=lease.id)
            found = await store.get(key)
            assert found is not None
            term = Term(key, found.create_revision, lease)
            assert await fenced(store, term, [], [PutOp("/early", b"1")])
            # The key comes back under another lease, as it does for a successor with the same id.
            await asyncio.to_thread(stack.etcd.ctl, "del", key)
            await asyncio.to_thread(stack.etcd.ctl, "put", key, "{}")
            assert not term.over
            with pytest.raises(NotLeaderError):
                await fenced(store, term, [], [PutOp("/late", b"1")])
            assert await store.get("/late") is None
            await lease.revoke()
        finally:
            await store.close()

    with Stack(tmp_path) as stack:
        asyncio.run(body(stack))


def test_while_etcd_is_away_the_api_reads_from_memory_and_afterwards_all_goes_on(tmp_path: Path) -> None:
    with Stack(tmp_path, leader_ttl=TTL) as stack:
        only = stack.coordinator("c1")
        add_node(stack, "n1")
        assert ask(stack, only, "PUT", f"{MODELS}/m", SPEC)[0] == 201
        wait_until(lambda: len(assigned(stack)) == 1, within=10, what="the placement")
        before = assigned(stack)
        stack.etcd.kill()
        wait_until(lambda: ask(stack, only, "GET", "/admin/v1/status")[1]["stale"], within=20, what="it to notice")
        status, body, headers = ask(stack, only, "GET", f"{MODELS}/m")
        assert (status, body["name"]) == (200, "m")
        assert float(headers["x-llmgw-stale"]) >= 0
        status, body, headers = ask(stack, only, "POST", f"{MODELS}/m/scale", {"replicas": 2})
        assert (status, body["error"]["code"]) == (503, "store_unavailable")
        assert int(headers["retry-after"]) >= 1
        wait_until(lambda: not leads(stack, only), within=20, what="it to lay down its lead")
        stack.etcd.start()
        back = time.monotonic()
        wait_until(
            lambda: ask(stack, only, "POST", f"{MODELS}/m/scale", {"replicas": 2})[0] == 200,
            within=20,
            what="a write to succeed",
        )
        wait_until(lambda: len(assigned(stack)) == 2, within=20, what="the second placement")
        print(f"etcd back: converged after {time.monotonic() - back:.2f} s")
        assert time.monotonic() - back <= 10
        kept = {(each.replica, each.epoch) for each in assigned(stack)}
        assert (before[0].replica, before[0].epoch) in kept
        assert "stale" not in ask(stack, only, "GET", "/admin/v1/status")[2]


def test_two_clients_scale_at_once_through_two_coordinators(tmp_path: Path) -> None:
    with Stack(tmp_path, leader_ttl=TTL) as stack:
        first, second = stack.coordinator("c1"), stack.coordinator("c2")
        assert ask(stack, first, "PUT", f"{MODELS}/m", SPEC)[0] == 201

        def scale(number: int) -> int:
            return ask(stack, (first, second)[number % 2], "POST", f"{MODELS}/m/scale", {"replicas": number})[0]

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(scale, range(2, 34))) == {200}
        spec = json.loads(stack.etcd.ctl("get", "--print-value-only", keyspace.model("m")))
        assert spec["generation"] == 33, "each of the 32 was one change"


def test_an_etcd_that_lost_its_data_is_neither_obeyed_nor_filled(tmp_path: Path) -> None:
    with Stack(tmp_path, leader_ttl=TTL) as stack:
        only = stack.coordinator("c1")
        add_node(stack, "n1")
        assert ask(stack, only, "PUT", f"{MODELS}/m", SPEC)[0] == 201
        wait_until(lambda: len(assigned(stack)) == 1, within=10, what="the placement")
        stack.etcd.kill()
        stack.etcd.wipe()
        stack.etcd.start()
        wait_until(
            lambda: "not the store known before" in str(ask(stack, only, "GET", "/admin/v1/status")[1]["problems"]),
            within=30,
            what="the alarm",
        )
        status, body, _ = ask(stack, only, "PUT", f"{MODELS}/other", SPEC)
        assert (status, body["error"]["code"]) == (503, "store_frozen")
        assert [each["name"] for each in ask(stack, only, "GET", MODELS)[1]["models"]] == ["m"], "it still knows what was"
        wait_until(lambda: leads(stack, only), within=20, what="it to lead, for all the good it does")
        assert assigned(stack) == []
        assert stack.etcd.ctl("get", "--keys-only", keyspace.CLUSTER) == ""
