"""Which process belongs to which shard after a start. Pure."""

from __future__ import annotations

from typing import Any

from llmgw_agent.process.identity import Identity, Marker, Owner
from llmgw_agent.process.scan import Marked
from llmgw_agent.shard.recover import choose, rebuild
from llmgw_agent.shard.state import SavedAttempt, SavedProcess, SavedShard, fingerprint
from llmgw_proto.records import AssignmentRecord

WISH = AssignmentRecord(shard="m-1.0", replica="m-1", model="m", epoch=3, engine="llamacpp")
ATTEMPT = SavedAttempt(id="a1", wish=fingerprint(WISH), host="h", port=5)


def saved(**fields: Any) -> SavedShard:
    return SavedShard(node="n", assignment=WISH, api_key="k", **fields)


def marked(pid: int, attempt: str = "a1", *, leader: bool = True, epoch: int = 3, wish: str = fingerprint(WISH)) -> Marked:
    return Marked(Identity(pid, pid * 10, "boot"), Marker(Owner("c", "n"), "m-1.0", epoch, attempt, 5, wish), leader)


def test_a_saved_process_is_adopted_if_exactly_it_still_runs() -> None:
    process = SavedProcess(pid=7, start_ticks=70, boot_id="boot", started_at=0)
    one = saved(attempt=ATTEMPT, process=process)
    assert choose(one, [], lambda identity: identity == Identity(7, 70, "boot")) == Identity(7, 70, "boot")
    assert choose(one, [marked(9)], lambda identity: False) is None


def test_after_a_crash_between_spawn_and_save_the_mark_tells() -> None:
    one = saved(attempt=ATTEMPT)
    assert choose(one, [marked(8, leader=False), marked(9)], lambda _: True) == Identity(9, 90, "boot")
    assert choose(one, [marked(9, attempt="another")], lambda _: True) is None
    assert choose(one, [], lambda _: True) is None


def test_without_an_attempt_nothing_can_be_ours() -> None:
    assert choose(saved(), [marked(9)], lambda _: True) is None


def test_a_lost_state_file_is_rebuilt_from_a_process_that_fulfils_the_wish() -> None:
    found = rebuild("n", WISH, "k", "h", [marked(9, leader=False), marked(8)], 1.0)
    assert found is not None
    assert found.process == SavedProcess(pid=8, start_ticks=80, boot_id="boot", started_at=1.0)
    assert found.attempt == ATTEMPT
    assert rebuild("n", WISH, "k", "h", [marked(8, epoch=2)], 1.0) is None
    assert rebuild("n", WISH, "k", "h", [marked(8, wish="other")], 1.0) is None
