"""The small pure parts: keys, CORS, the list of models, errors by family, figures, loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_base.config import ConfigError
from llmgw_router.account.figures import MAX_SERIES, Counter, Histogram, add_up, family_of
from llmgw_router.admission import keys
from llmgw_router.api import errors, models
from llmgw_router.api.cors import Cors
from llmgw_router.api.routes import RELAYED, Family
from llmgw_router.errors import ApiError
from llmgw_router.publish import loads
from llmgw_router.table.directory import Table
from llmgw_router.table.replica import Replica
from llmgw_router.table.spec import Address, EndpointSpec


def test_keys_are_kept_as_hashes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# people\n\nalice: sk-alice-1\n bob:sk:with:colons \n")
    found = keys.load(file)
    assert [found.name_of(key) for key in (b"sk-alice-1", b"sk:with:colons", b"sk-alice", b"")] == ["alice", "bob", None, None]
    assert "sk-alice-1" not in repr(vars(found))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alice\n", "line 1"),
        ("a:sk-secret\nb sk-secret\n", "line 2"),
        ("a:sk-secret\nb:sk-secret\n", "'a' already"),
        ("a:sk secret\n", "line 1"),
        ("# nothing\n", "holds no key"),
    ],
)
def test_bad_key_files_are_named_without_a_key(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        keys.load(file)
    assert "secret" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_cors() -> None:
    assert b"Access-Control-Allow-Origin: *\r\n" in Cors(["*"]).lines(b"https://a")
    some = Cors(["https://a"])
    assert b"Access-Control-Allow-Origin: https://a\r\nVary: Origin\r\n" in some.lines(b"https://a")
    assert b"Allow-Origin" not in some.lines(b"https://b")
    assert Cors([]).lines(b"https://a") == b""
    assert b"Access-Control-Allow-Headers: authorization, x-a\r\n" in some.preflight(b"authorization, x-a")
    assert not any(b"evil" in line for line in some.preflight(b"x\r\nevil: 1"))


def replica(
    name: str, *model_names: str, card: dict[str, dict[str, object]] | None = None, length: int | None = None
) -> Replica:
    made = Replica(EndpointSpec(name, Address("h", 1), model_names, max_model_len=length))
    made.card = card or {}
    return made


def test_models_are_merged_with_unknown_fields_kept_and_the_smallest_context() -> None:
    one = replica("a", "m", card={"m": {"id": "m", "object": "model", "max_model_len": 4096, "permission": [1]}})
    other = replica("b", "m", "n", length=2048)
    table = Table(models={"m": (one, other), "n": (other,)}, replicas=(one, other))
    data = json.loads(models.listing(table, 5))["data"]
    assert [each["id"] for each in data] == ["m", "n"]
    assert data[0]["permission"] == [1]
    assert data[0]["max_model_len"] == 2048
    assert data[1] == {"id": "n", "object": "model", "created": 5, "owned_by": "llmgw", "max_model_len": 2048}


@pytest.mark.parametrize("path", ["org/m", "org%2Fm", "org%2fm", "org/m/", "%6Frg/m"])
def test_model_ids_with_slashes(path: str) -> None:
    table = Table(models={"org/m": (replica("a", "org/m"),)})
    assert json.loads(models.one(table, b"/v1/models/" + path.encode(), 1))["id"] == "org/m"


@pytest.mark.parametrize(("path", "status"), [(b"x", 404), (b"%ff", 400), (b"..%2forg%2fm", 404)])
def test_model_ids_that_are_none(path: bytes, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        models.one(Table(models={"org/m": ()}), b"/v1/models/" + path, 1)
    assert caught.value.status == status


ERROR = ApiError(503, "no_replica", "None \u2028 here.", retry_after=1)


def test_errors_look_as_each_family_expects() -> None:
    openai = json.loads(errors.body(ERROR, Family.OPENAI, "r"))["error"]
    assert (openai["type"], openai["code"], openai["param"]) == ("server_error", "no_replica", None)
    anthropic = json.loads(errors.body(ERROR, Family.ANTHROPIC, "r"))
    assert (anthropic["type"], anthropic["error"]["type"], anthropic["request_id"]) == ("error", "overloaded_error", "r")


@pytest.mark.parametrize("family", list(Family))
def test_error_events_are_one_event_and_never_an_end(family: Family) -> None:
    event = errors.event(ERROR, family, "r")
    assert event.count(b"\n\n") == 1
    assert event.endswith(b"\n\n")
    assert b"[DONE]" not in event
    data = json.loads(event.splitlines()[-2].removeprefix(b"data: "))
    assert ERROR.message in json.dumps(data, ensure_ascii=False)


def test_every_route_is_a_plain_path_with_a_known_capability() -> None:
    from typing import get_args

    from llmgw_proto.records import Capability

    for path, route in RELAYED.items():
        assert path == route.path.encode()
        assert path.startswith(b"/")
        assert not path.endswith(b"/")
        assert route.capability in get_args(Capability)


def test_labels_are_bounded() -> None:
    counter = Counter("c", "help", ["a", "b"])
    for number in range(3 * MAX_SERIES):
        counter.add((str(number), "x"))
    assert len(counter.values) == MAX_SERIES + 1
    assert counter.values["other", "other"] == 2 * MAX_SERIES
    histogram = Histogram("h", "help", ["a"], [1])
    for number in range(2 * MAX_SERIES):
        histogram.of((str(number),)).observe(0.5)
    assert len(histogram.series) <= MAX_SERIES + 1


@given(st.lists(st.lists(st.floats(0, 20), max_size=10), min_size=1, max_size=4))
def test_figures_of_workers_add_up(workers: list[list[float]]) -> None:
    snapshots = []
    for values in workers:
        histogram, counter = Histogram("h", "help", ["m"], [1, 5, 10]), Counter("c", "help", ["m"])
        for value in values:
            histogram.of(("x",)).observe(value)
            counter.add(("x",))
        snapshots.append([family_of(histogram), family_of(counter)])
    total = {family.name: family for family in add_up(snapshots)}
    everything = [value for values in workers for value in values]
    if everything:
        ((_, counted),) = total["h"].samples
        assert counted[0] == sum(value <= 1 for value in everything)
        assert sum(counted[:-1]) == len(everything)
        assert counted[-1] == pytest.approx(sum(everything))
        assert total["c"].samples == [(("x",), [len(everything)])]


def test_loads_come_from_the_figures() -> None:
    running, errors_ = Counter("llmgw_router_model_running", "", ["m"]), Counter("llmgw_router_model_errors", "", ["m"])
    running.add(("m",), 3)
    errors_.add(("n",), 2)
    unrelated = Counter("llmgw_router_requests", "", ["m"])
    unrelated.add(("m",), 9)
    found = loads([family_of(each) for each in (running, errors_, unrelated)])
    assert (found["m"].running, found["n"].errors, found["m"].errors) == (3, 2, 0)
