"""From endpoints, given or watched, to the table that requests are routed by."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from llmgw_base.config import ConfigError
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord, EndpointRecord
from llmgw_router import policies
from llmgw_router.admission.queue import WaitQueue
from llmgw_router.api.routes import RELAYED
from llmgw_router.config import EndpointSection
from llmgw_router.errors import ApiError, TableError
from llmgw_router.health.outlier import Rules
from llmgw_router.relay.lookup import find_group
from llmgw_router.table import cache, static
from llmgw_router.table.directory import Directory, ModelState
from llmgw_router.table.known import Known
from llmgw_router.table.replica import Replica
from llmgw_router.table.spec import Address, EndpointSpec, parse_endpoint, parse_url

SECRET = "ab" * 32
CHAT = RELAYED[b"/v1/chat/completions"]
EMBEDDINGS = RELAYED[b"/v1/embeddings"]


def record(replica: str = "m-1", port: int = 9000, **more: object) -> EndpointRecord:
    values = {"replica": replica, "node": "n1", "model": "m", "epoch": 1, "url": f"http://10.0.0.1:{port}", "served_name": "m"}
    return EndpointRecord.model_validate(values | {"capabilities": ["chat"]} | more)


def key(replica: str = "m-1", node: str = "n1") -> str:
    return keyspace.endpoint(node, replica)


def known(keep: float = 600) -> Known:
    made = Known(keep)
    made.cluster = ClusterRecord(id="c", name="c", created_at=0, engine_secret=SECRET)
    return made


def directory() -> tuple[Directory, list[Replica]]:
    retired: list[Replica] = []

    def model(name: str, wanted: str | None) -> ModelState:
        chosen = wanted or "least_loaded"
        return ModelState(name, policies.make(chosen, policies.Settings(random.Random(1))), chosen, WaitQueue(5))

    return Directory(model, Rules(), retired.append), retired


# --- one endpoint -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address", "secret"),
    [
        ("http://127.0.0.1:9000", Address("127.0.0.1", 9000), None),
        ("http://127.0.0.1:9000/", Address("127.0.0.1", 9000), None),
        ("http://:KEY@host:9000", Address("host", 9000), "KEY"),
        ("http://user:a%3Ab@host", Address("host", 80), "a:b"),
        ("https://[::1]", Address("::1", 443, tls=True), None),
    ],
)
def test_urls(text: str, address: Address, secret: str | None) -> None:
    assert parse_url(text) == (address, secret)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:9000", "ftp://h:1", "http://", "http://h:x", "http://h:1/v1", "http://h:1?a=b", "http://:a%0Ab@h:1"]
)
def test_bad_urls_are_named_without_their_key(text: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_url(text)
    assert "a%0Ab" not in str(caught.value)


def test_short_form_with_several_models_and_an_equals_sign_in_the_key() -> None:
    spec = parse_endpoint("e1=http://:a=b@h:1=org/m,n")
    assert (spec.id, spec.models, spec.key) == ("e1", ("org/m", "n"), "a=b")


def test_long_form() -> None:
    section = EndpointSection(
        id="e", url="http://h:1", models=["m"], served_name="x", max_concurrency=3, weight=5, capabilities=["chat"]
    )
    (spec,) = static.parse_all([section])
    assert (spec.served_name, spec.max_concurrency, spec.weight, spec.capabilities) == ("x", 3, 5, frozenset({"chat"}))


@pytest.mark.parametrize(
    "texts", [["e1"], ["e1=http://h:1"], ["e1=http://h:1="], ["=http://h:1=m"], ["a=http://h:1=m", "a=http://h:2=m"]]
)
def test_bad_endpoints_are_errors_of_the_configuration(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="endpoints:"):
        static.parse_all(texts)


def test_authority_is_what_a_host_field_holds() -> None:
    assert [Address("h", 80).authority, Address("h", 443, tls=True).authority] == ["h", "h"]
    assert [Address("::1", 81).authority, str(Address("h", 81, tls=True))] == ["[::1]:81", "https://h:81"]


# --- what is known of the store ---------------------------------------------------------------------------------------


def test_record_becomes_a_spec_with_the_derived_key() -> None:
    it = known()
    it.put(key(), record(max_concurrency=4, served_name="other", policy="session"))
    (spec,) = it.specs()
    assert spec.key == engine_key(SECRET, "m-1", 1)
    assert (spec.served_name, spec.max_concurrency, spec.policy, spec.vanished) == ("other", 4, "session", False)


def test_deleted_while_draining_is_gone() -> None:
    it = known()
    it.put(key(), record(draining=True))
    assert not it.deleted(key(), now=0)
    assert list(it.specs()) == []


def test_vanished_is_kept_for_its_time_and_until_it_is_dead() -> None:
    it = known(keep=10)
    for name in ("m-1", "m-2"):
        it.put(key(name), record(name))
        assert it.deleted(key(name), now=0)
    assert [each.vanished for each in it.specs()] == [True, True]
    assert it.dead("m-1")
    assert not it.dead("m-1")
    assert not it.expire(9)
    assert it.expire(10)
    assert list(it.specs()) == []


def test_vanished_is_forgotten_when_its_replica_is_back_elsewhere() -> None:
    it = known()
    it.put(key(), record())
    it.deleted(key(), now=0)
    it.put(key(node="n2"), record(node="n2", epoch=2))
    assert [(each.node, each.vanished) for each in it.specs()] == [("n2", False)]


def test_deleted_after_the_replica_moved_is_gone() -> None:
    it = known()
    it.put(key(), record())
    it.put(key(node="n2"), record(node="n2", epoch=2))
    assert not it.deleted(key(), now=0)
    assert [each.node for each in it.specs()] == ["n2"]


def test_record_that_cannot_be_used_is_left_out_and_named() -> None:
    it = known()
    it.put(key(), record(url="nonsense"))
    it.put(key("m-2"), record("m-2"))
    assert [each.id for each in it.specs()] == ["m-2"]
    assert "nonsense" in it.problems[key()]


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_table_on_disk_comes_back_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    it = known()
    it.put(key(), record(future_field={"kept": True}))
    assert it.cluster is not None
    cache.save(tmp_path / "state", it.cluster, it.records, wall=123.0)
    (file,) = (tmp_path / "state").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    again = Known(600)
    assert cache.load(tmp_path / "state", again) == 123.0
    assert list(again.specs()) == list(it.specs())
    assert again.records == it.records


def test_a_file_that_is_damaged_anywhere_is_as_good_as_none(tmp_path: Path) -> None:
    it = known()
    it.put(key(), record())
    assert it.cluster is not None
    cache.save(tmp_path, it.cluster, it.records, wall=1.0)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        file.write_bytes(whole[:length])
        assert cache.load(tmp_path, Known(600)) is None
    file.write_bytes(b'{"saved_at": 1, "cluster": {}, "endpoints": []}')
    assert cache.load(tmp_path, Known(600)) is None
    file.unlink()
    assert cache.load(tmp_path, Known(600)) is None


# --- the directory ----------------------------------------------------------------------------------------------------


def spec(name: str, **more: object) -> EndpointSpec:
    return dataclasses.replace(EndpointSpec(name, Address("h", 1), ("m",)), **more)  # type: ignore[arg-type]  # fields by name


def test_replicas_keep_their_record_over_a_change_and_lose_it_with_their_address() -> None:
    it, retired = directory()
    it.apply([spec("a"), spec("b")])
    one, other = it.table.replicas
    one.load = 3
    it.apply([spec("a", weight=7), spec("b", address=Address("h", 2))])
    assert it.table.replicas[0] is one
    assert (one.load, one.weight) == (3, 7)
    assert it.table.replicas[1] is not other
    assert retired == [other]
    assert other.gone


def test_the_old_table_never_changes() -> None:
    it, _ = directory()
    it.apply([spec("a"), spec("b")])
    before = it.table
    members = before.groups["m", "*"].members
    it.apply([spec("a")])
    assert before.groups["m", "*"].members == members
    assert len(it.table.groups["m", "*"].members) == 1


def test_groups_by_capability() -> None:
    it, _ = directory()
    it.apply(
        [spec("a", capabilities=frozenset({"chat", "embeddings"})), spec("b", capabilities=frozenset({"chat"})), spec("c")]
    )
    names = [each.id for each in find_group(it.table, "m", CHAT).usable]
    assert names == ["a", "b", "c"]
    assert [each.id for each in find_group(it.table, "m", EMBEDDINGS).usable] == ["a", "c"]
    assert [each.id for each in find_group(it.table, "m", RELAYED[b"/v1/rerank"]).usable] == ["c"]


def test_what_nobody_can_do_is_a_400_and_what_is_not_there_a_404() -> None:
    it, _ = directory()
    it.apply([spec("a", capabilities=frozenset({"chat"}))])
    for name, status, code in (("m", 400, "unsupported_by_model"), ("x", 404, "model_not_found")):
        with pytest.raises(ApiError) as caught:
            find_group(it.table, name, EMBEDDINGS)
        assert (caught.value.status, caught.value.code) == (status, code)


def test_a_declared_model_without_a_replica_is_not_ready_rather_than_unknown() -> None:
    it, _ = directory()
    it.declare(["m"])
    it.apply([])
    with pytest.raises(ApiError) as caught:
        find_group(it.table, "m", CHAT)
    assert (caught.value.status, caught.value.code) == (503, "no_replica")
    assert caught.value.retry_after


def test_draining_and_ejected_replicas_get_nothing_new() -> None:
    it, _ = directory()
    it.apply([spec("a"), spec("b"), spec("c", draining=True)])
    group = it.table.groups["m", "*"]
    assert [each.id for each in group.members] == ["a", "b"]
    group.members[0].health.failure(0, Rules(), decisive=True)
    it.refresh()
    assert [each.id for each in it.table.groups["m", "*"].usable] == ["b"]
    group.members[1].health.failure(0, Rules(), decisive=True)
    it.refresh()
    assert [each.id for each in it.table.groups["m", "*"].usable] == ["a", "b"], "panic: all are tried"


def test_model_state_outlives_changes_and_goes_with_the_model() -> None:
    it, _ = directory()
    it.apply([spec("a")])
    state = it.state("m")
    assert state is not None
    it.apply([spec("b")])
    assert it.state("m") is state
    it.apply([spec("b", policy="round_robin")])
    assert it.state("m") is state
    assert state.policy.name == "round_robin"
    state.running = 1
    it.apply([])
    assert it.state("m") is state, "a request is still under way"
    state.running = 0
    it.apply([])
    assert it.state("m") is None
