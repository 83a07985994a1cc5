"""From records to what the admin API shows."""

from __future__ import annotations

from llmgw_coordinator.api.present import Facts, model_view, model_views, replica_views
from llmgw_coordinator.planner import Plan
from llmgw_coordinator.state.view import Stored, View
from llmgw_proto.records import AliveRecord, AssignmentRecord, EndpointRecord, ShardState
from llmgw_testing.worlds import model, shard_of

WISH = AssignmentRecord(shard="m-1.0", replica="m-1", model="m", epoch=2, engine="command", gpus=["g"])
ALIVE = AliveRecord(node="n1", version="0", started_at=0.0, pid=1, grpc_address="h:1")
LIVE = EndpointRecord(replica="m-1", node="n1", model="m", epoch=2, url="http://h:1", served_name="m", capabilities=[])
PLACE = ("n1", "m-1.0")


def view(**tables: object) -> View:
    base: dict[str, object] = {
        "models": {"m": Stored(model("m"), 1, 1)},
        "assignments": {PLACE: Stored(WISH, 1, 1)},
        "alive": {"n1": Stored(ALIVE, 1, 1)},
        "breathing": frozenset({"n1"}),
    }
    return View(**(base | tables))  # type: ignore[arg-type]  # a table of tables


def test_what_is_said_of_an_earlier_epoch_is_not_shown_as_the_present() -> None:
    old = WISH.model_copy(update={"epoch": 1})
    shown = replica_views(
        Facts(
            view(
                shards={PLACE: Stored(shard_of("n1", old, ShardState.FAILED, pid=7, reason="it broke"), 1, 1)},
                endpoints={("n1", "m-1"): Stored(LIVE.model_copy(update={"epoch": 1}), 1, 1)},
            ),
            Plan(),
        )
    )["m-1"]
    assert (shown.state, shown.pid, shown.reason, shown.url, shown.epoch) == ("Assigned", None, "", None, 2)


def test_a_draining_endpoint_shows_at_its_replica() -> None:
    shards = {PLACE: Stored(shard_of("n1", WISH), 1, 1)}
    for draining in (False, True):
        live = {("n1", "m-1"): Stored(LIVE.model_copy(update={"draining": draining}), 1, 1)}
        shown = replica_views(Facts(view(shards=shards, endpoints=live), Plan()))["m-1"]
        assert (shown.url, shown.draining, shown.state) == ("http://h:1", draining, "Ready")


def test_a_ready_replica_on_a_node_that_is_away_does_not_count_and_says_so() -> None:
    shards = {PLACE: Stored(shard_of("n1", WISH), 1, 1)}
    shown = model_view(Facts(view(shards=shards, alive={}, breathing=frozenset()), Plan()), "m")
    assert shown is not None
    assert (shown.ready, shown.replicas[0].state) == (0, "Ready")
    assert "node n1 is away; this is what it last reported" in shown.reason


def test_a_moved_replica_shows_at_its_new_place_only() -> None:
    left = {("n0", "m-1.0"): Stored(shard_of("n0", WISH.model_copy(update={"epoch": 1})), 1, 1)}
    assert [(each.node, each.epoch) for each in replica_views(Facts(view(shards=left), Plan())).values()] == [("n1", 2)]


def test_the_reason_is_the_planners_before_the_replicas() -> None:
    shards = {PLACE: Stored(shard_of("n1", WISH, ShardState.FAILED, reason="it broke", next_attempt_at=9.0), 1, 1)}
    shown = model_views(Facts(view(shards=shards), Plan()))[0]
    assert shown.reason == "replica m-1: it broke"
    shown = model_views(Facts(view(shards=shards), Plan(reasons={"m": "no room"})))[0]
    assert shown.reason == "no room"
    shown = model_views(Facts(view(shards=shards), Plan(failures={"m": ZeroDivisionError("x")})))[0]
    assert (shown.state, "ZeroDivisionError: x" in shown.reason) == ("Failed", True)
