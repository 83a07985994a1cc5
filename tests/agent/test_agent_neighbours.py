"""Two shards, or two lives of one, beside each other on a node: none touches what is the other's."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from llmgw_agent.config import RestartSection
from llmgw_agent.process.end import send_signal
from llmgw_agent.process.identity import Identity, Marker, Owner, boot_id, is_running
from llmgw_agent.process.isolation import InGroups
from llmgw_agent.process.scan import find_marked
from llmgw_agent.process.spawn import clean_environment, spawn
from llmgw_agent.publisher import Publisher
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.ledger import Ledger
from llmgw_agent.shard.recover import Found
from llmgw_agent.shard.runner import Runner
from llmgw_agent.shard.state import SavedShard, StateDir
from llmgw_agent.shard.supervisor import Supervisor
from llmgw_base.clock import SystemClock
from llmgw_proto import keyspace
from llmgw_proto.records import EndpointRecord, GangPhase, GangState, ShardRole
from llmgw_testing.agent_harness import WITHIN, fake_wish
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.wait import eventually


async def nothing_against_it() -> str | None:
    return None


def context_of(folder: Path, node: str) -> Context:
    """As much of a context as is needed where no engine is started."""
    clock = SystemClock()
    made = SimpleNamespace(
        node=node,
        owner=Owner("c", node),
        clock=clock,
        boot=boot_id(),
        config=SimpleNamespace(
            state_dir=folder, logs=SimpleNamespace(keep_removed=1), restart=RestartSection(), gang_address="10.0.0.1"
        ),
        store=MemoryStore(),
        objection=nothing_against_it,
        spread=lambda: 0.0,
        publisher=Publisher(MemoryStore(), clock, [], 10.0, nothing_against_it),
        state=StateDir(folder),
        isolation=InGroups(),
        kv_folder=folder / "kv",
        problems={},
        log_folder=lambda shard: folder / "logs" / shard,
    )
    return cast(Context, cast(Any, made))


def test_the_end_of_a_former_worker_leaves_the_endpoint_of_the_new_head_on_its_node(tmp_path: Path) -> None:
    context = context_of(tmp_path, "n1")
    worker = fake_wish(shard="m-1.1", rank=1, role=ShardRole.WORKER, peers=["n0", "n1"])
    former = Ledger(context, SavedShard(node="n1", assignment=worker, api_key="k"))
    head = Ledger(context, SavedShard(node="n1", assignment=fake_wish(epoch=2), api_key="k"))
    endpoint = EndpointRecord(
        replica="m-1", node="n1", model="m", epoch=2, url="http://h:1", served_name="m", capabilities=[], max_concurrency=1
    )
    head.offer(endpoint)
    former.withdraw()
    former.close(finished=True)
    assert context.publisher.values(keyspace.endpoints_of("n1")) == [endpoint.encode()]
    head.withdraw()
    assert context.publisher.values(keyspace.endpoints_of("n1")) == []


def start(owner: Owner, attempt: str) -> Identity:
    marker = Marker(owner, "m-1.0", 1, attempt, 1, "wish")
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        return spawn(["sleep", "600"], clean_environment(os.environ, marker.environment()), null, boot_id())
    finally:
        os.close(null)


def test_orphans_are_ended_and_not_the_engine_that_was_started_in_their_place(tmp_path: Path) -> None:
    async def body() -> None:
        context = context_of(tmp_path, f"n-{uuid.uuid4().hex[:8]}")
        orphan = start(context.owner, "a1")
        mine: list[Identity] = [orphan]
        try:
            found = await eventually(lambda: find_marked(context.node), within=WITHIN, what="the orphan's mark")
            assert found is not None
            mine.append(start(context.owner, "a2"))
            await eventually(lambda: len(find_marked(context.node)) == 2, within=WITHIN, what="the other's mark")
            supervisor = Supervisor(context, Found(marked={"m-1.0": found}))
            supervisor.complete(set())
            await asyncio.gather(*[each for each in asyncio.all_tasks() if each.get_name() == "orphans-m-1.0"])
            assert [is_running(each, boot_id()) for each in mine] == [False, True]
        finally:
            for each in mine:
                send_signal(each, signal.SIGKILL)

    asyncio.run(body())


def test_a_worker_that_was_ready_in_an_earlier_life_of_the_agent_counts_as_having_served(tmp_path: Path) -> None:
    # What its log says at its end is judged by that: the same words before it was ready would be final.
    context = context_of(tmp_path, "n1")
    worker = fake_wish(shard="m-1.1", rank=1, role=ShardRole.WORKER, peers=["n0", "n1"])
    for phase, served in ((GangPhase.READY, True), (GangPhase.STARTED, False)):
        saved = SavedShard(node="n1", assignment=worker, api_key="k", gang=GangState(attempt=1, phase=phase))
        assert Runner(context, saved).served is served
