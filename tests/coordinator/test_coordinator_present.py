"""From records to what the admin API shows."""

from __future__ import annotations

import pytest

from llmgw_coordinator.api.present import Facts, model_view, model_views, replica_views
from llmgw_coordinator.api.shapes import ReplicaView
from llmgw_coordinator.planner import Plan
from llmgw_coordinator.state.view import Stored, View
from llmgw_proto.records import AliveRecord, AssignmentRecord, EndpointRecord, GangPhase, GangState, ShardState
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


# --- over several nodes --------------------------------------------------------------------------------------------------

RANKS = [
    WISH.model_copy(update={"shard": f"m-1.{rank}", "rank": rank, "peers": ["n1", "n2"], "gpus": [f"g{rank}"]})
    for rank in (0, 1)
]


def pair(*states: ShardState, away: str = "", **worker: object) -> ReplicaView:
    """A replica over n1 and n2 whose shards are in these states; ``worker``: more of rank 1's record."""
    places = [("n1", "m-1.0"), ("n2", "m-1.1")]
    gang = GangState(attempt=3, phase=GangPhase.READY)
    more: list[dict[str, object]] = [{"pid": 7, "reason": "the head's words"}, {"pid": 8, "gang": gang} | worker]
    shown = view(
        assignments={place: Stored(wish, 1, 1) for place, wish in zip(places, RANKS, strict=True)},
        shards={
            place: Stored(shard_of(place[0], wish, state, **fields), 1, 1)
            for place, wish, state, fields in zip(places, RANKS, states, more, strict=False)
        },
        endpoints={("n1", "m-1"): Stored(LIVE, 1, 1)},
        breathing=frozenset({"n1", "n2"} - {away}),
    )
    return replica_views(Facts(shown, Plan()))["m-1"]


def test_a_replica_over_nodes_is_shown_as_one_with_its_shards() -> None:
    shown = pair(ShardState.READY, ShardState.READY)
    assert (shown.node, shown.nodes, shown.state, shown.pid, shown.url) == ("n1", ["n1", "n2"], "Ready", 7, "http://h:1")
    assert shown.gpus == ["g0", "g1"]
    head, worker = shown.shards
    assert (head.shard, head.rank, head.role, head.node, head.phase, head.gpus) == ("m-1.0", 0, "head", "n1", None, ["g0"])
    assert (worker.shard, worker.rank, worker.role, worker.node, worker.pid) == ("m-1.1", 1, "worker", "n2", 8)
    assert (worker.phase, worker.attempt) == ("ready", 3)


@pytest.mark.parametrize(
    ("head", "worker", "state"),
    [
        (ShardState.READY, ShardState.STARTING, "Starting"),
        (ShardState.STARTING, ShardState.FETCHING, "Fetching"),
        (ShardState.FAILED, ShardState.STARTING, "Failed"),
        (ShardState.STARTING, ShardState.REJECTED, "Rejected"),
        (ShardState.SUSPECT, ShardState.READY, "Suspect"),
    ],
)
def test_a_replica_is_as_ready_as_its_least_ready_shard(head: ShardState, worker: ShardState, state: str) -> None:
    assert pair(head, worker).state == state


def test_a_shard_that_is_not_heard_of_yet_is_assigned_and_so_is_the_replica() -> None:
    shown = pair(ShardState.STARTING)
    assert (shown.state, [each.state for each in shown.shards]) == ("Assigned", ["Starting", "Assigned"])


def test_the_worst_shards_reason_comes_first_and_says_whose_it_is() -> None:
    shown = pair(ShardState.STARTING, ShardState.FAILED, reason="the disk is full", next_attempt_at=9.0)
    assert (shown.reason, shown.next_attempt_at) == ("rank 1 on n2: the disk is full", 9.0)
    assert pair(ShardState.FAILED, ShardState.STARTING).reason == "the head's words"
    assert pair(ShardState.READY, ShardState.READY, away="n2").reason.startswith("node n2 is away")


def test_a_replica_with_a_node_away_does_not_count_as_ready() -> None:
    places = {("n1", "m-1.0"): RANKS[0], ("n2", "m-1.1"): RANKS[1]}
    shown = model_view(
        Facts(
            view(
                assignments={place: Stored(wish, 1, 1) for place, wish in places.items()},
                shards={place: Stored(shard_of(place[0], wish), 1, 1) for place, wish in places.items()},
            ),
            Plan(),
        ),
        "m",
    )
    assert shown is not None
    assert (shown.ready, len(shown.replicas)) == (0, 1)


def test_what_is_left_of_a_removed_replica_is_shown_as_one() -> None:
    places = {("n1", "m-1.0"): RANKS[0], ("n2", "m-1.1"): RANKS[1]}
    shards = {place: Stored(shard_of(place[0], wish, ShardState.DRAINING), 1, 1) for place, wish in places.items()}
    (shown,) = replica_views(Facts(view(assignments={}, shards=shards), Plan())).values()
    assert (shown.nodes, shown.state, shown.draining) == (["n1", "n2"], "Draining", True)


def test_shards_of_an_older_epoch_are_not_part_of_it() -> None:
    old = {("n3", "m-1.1"): Stored(RANKS[1].model_copy(update={"epoch": 1}), 1, 1)}
    wishes = {("n1", "m-1.0"): Stored(RANKS[0], 1, 1), ("n2", "m-1.1"): Stored(RANKS[1], 1, 1)}
    (shown,) = replica_views(Facts(view(assignments=old | wishes), Plan())).values()
    assert shown.nodes == ["n1", "n2"]
