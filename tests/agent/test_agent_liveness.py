"""Busy or wedged: the verdict by tables, and real processes that wedge or are just slow."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from llmgw_agent.engines.pulse import Pulse, parse_pulse
from llmgw_agent.shard.evidence import threads
from llmgw_agent.shard.liveness import Judge, Look, Verdict
from llmgw_agent.shard.serve import HEALTH_AFTER_MISS, HEALTH_EVERY, HEALTH_TIMEOUT, MISSES_TO_SUSPECT
from llmgw_base.secrets import engine_key
from llmgw_proto.records import EndpointRecord
from llmgw_testing.agent_harness import SECRET, WITHIN, AgentHarness, fake_wish
from llmgw_testing.wait import eventually

FINE, ASK, STALLED = Verdict.FINE, Verdict.ASK, Verdict.STALLED
SILENT = Look(None, silent=True)
UNTOLD = Look(None)
UNTOLD_BUSY = Look(None, connections=2)


def told(requests: int, work: float, connections: int = 0) -> Look:
    return Look(Pulse(requests, (("tokens", work),)), connections=connections)


@pytest.mark.parametrize(
    ("looks", "verdicts"),
    [
        pytest.param([told(1, 0)] * 6, [FINE] * 5 + [STALLED], id="requests run and nothing gets on"),
        pytest.param([told(1, each) for each in range(9)], [FINE] * 9, id="slow, but it gets on"),
        pytest.param([told(3, 5)] * 5 + [told(3, 6)] * 5, [FINE] * 10, id="just in time"),
        pytest.param([told(0, 0)] * 9, [FINE] * 9, id="idle"),
        pytest.param([told(0, 7, 1)] * 4, [FINE] * 3 + [ASK], id="idle by its own word, though somebody is connected"),
        pytest.param([told(1, 0)] * 3 + [told(0, 0)] * 2 + [told(1, 0)] * 5, [FINE] * 10, id="given up requests prove nothing"),
        pytest.param([told(1, 0)] * 6 + [told(0, 0)] * 2, [FINE] * 5 + [STALLED, ASK, ASK], id="stalled, then quiet"),
        pytest.param([told(1, 0)] * 7 + [told(1, 1)], [FINE] * 5 + [STALLED] * 2 + [FINE], id="it gets on again"),
        pytest.param([told(1, 5)] * 4 + [told(1, 0)] * 5, [FINE] * 9, id="counters that start anew"),
        pytest.param([told(1, 0), *[SILENT] * 5], [FINE] * 5 + [STALLED], id="metrics that stop coming"),
        pytest.param([told(0, 0), *[SILENT] * 5], [FINE] * 5 + [STALLED], id="metrics that stop coming while it is idle"),
        pytest.param([SILENT] * 3, [FINE] * 3, id="metrics that never came do not condemn"),
        pytest.param([UNTOLD] * 4, [FINE] * 3 + [ASK], id="no metrics and nobody connected"),
        pytest.param([UNTOLD_BUSY] * 9, [FINE] * 9, id="no metrics and somebody connected: it cannot be told"),
        pytest.param([UNTOLD] * 3 + [UNTOLD_BUSY] + [UNTOLD] * 3, [FINE] * 6 + [ASK], id="idle anew"),
    ],
)
def test_the_verdict(looks: list[Look], verdicts: list[Verdict]) -> None:
    judge = Judge(stall=50, idle=30)
    assert [judge.look(at * 10.0, each) for at, each in enumerate(looks)] == verdicts


def test_an_answer_clears_and_none_condemns() -> None:
    judge = Judge(stall=40, idle=20)
    assert [judge.look(at * 10.0, UNTOLD) for at in range(3)] == [FINE, FINE, ASK]
    assert judge.asked(answered=True) is FINE
    assert [judge.look(30.0 + at * 10, UNTOLD) for at in range(2)] == [FINE, ASK]
    assert judge.asked(answered=False) is STALLED
    assert judge.look(50.0, UNTOLD_BUSY) is ASK, "a suspect is asked whoever is connected"
    assert judge.asked(answered=True) is FINE
    assert judge.look(60.0, UNTOLD) is FINE


def test_one_look_after_a_pause_of_the_agent_condemns_nobody() -> None:
    judge = Judge(stall=100, idle=30)
    judge.look(0.0, told(1, 0))
    assert judge.look(10_000.0, told(1, 0)) is FINE
    assert judge.still == 25


def test_a_frozen_engine_is_a_suspect_well_within_eight_seconds() -> None:
    """Frozen just after a good answer: a pause, then misses that each wait for an answer as long as they may."""
    waits = HEALTH_EVERY + MISSES_TO_SUSPECT * HEALTH_TIMEOUT + (MISSES_TO_SUSPECT - 1) * HEALTH_AFTER_MISS
    assert waits <= 8 - 0.9


METRICS = b"""# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:generation_tokens_total{engine="0"} 1.5e+03
vllm:prompt_tokens_total{engine="0"} 7.0
process_cpu_seconds_total 3
"""


@pytest.mark.parametrize(
    ("text", "pulse"),
    [
        (METRICS, Pulse(7, (("vllm:generation_tokens_total", 1500.0),), tokens=1500.0)),
        (
            b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:n_decode_total 56\n",
            Pulse(1, (("llamacpp:n_decode_total", 56.0),)),
        ),
        (
            b"llamacpp:requests_processing 0\nllamacpp:tokens_predicted_total 8\nllamacpp:tokens_predicted_seconds_total 0.5\n",
            Pulse(0, (("llamacpp:tokens_predicted_total", 8.0),), tokens=8.0, decode_seconds=0.5),
        ),
        (b'sglang:num_running_reqs{a="}"} 1.0\nsglang:num_used_tokens{} 9\n', Pulse(1, (("sglang:num_used_tokens", 9.0),))),
        (b"llamacpp:requests_processing 1\n", None),
        (b"llamacpp:n_decode_total 1\n", None),
        (b"llamacpp:requests_processing e\nllamacpp:n_decode_total 1\n", None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_metrics_are_read(text: bytes, pulse: Pulse | None) -> None:
    assert parse_pulse(text) == pulse


def test_threads_are_listed() -> None:
    lines = threads(os.getpid())
    assert lines[0].startswith(f"{os.getpid()} ")
    assert all(len(each.split()) >= 4 for each in lines)
    assert threads(0) == []


QUICK = {"stall_seconds": 2, "probe_seconds": 1, "hang_seconds": 2, "stop_seconds": 3}


async def send(endpoint: EndpointRecord, seconds: float) -> int:
    """Asks for an answer; its status, or 0 if none came in time."""
    body = {"model": endpoint.served_name, "messages": [{"role": "user", "content": "x"}]}
    headers = {"Authorization": f"Bearer {engine_key(SECRET, endpoint.replica, 1)}"}
    limit = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(endpoint.url + "/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            await answer.read()
            return answer.status
    except (TimeoutError, aiohttp.ClientError):
        return 0


async def until_stuck(endpoint: EndpointRecord) -> None:
    """Asks again and again: the engine may take its signal only after it has answered."""
    while await send(endpoint, 60) == 200:
        pass


def test_a_wedged_engine_is_a_suspect_then_ended_and_started_again_with_evidence_kept(tmp_path: Path) -> None:
    async def body() -> None:
        # The agent asks nothing of its own before the engine is a suspect: only the waiting request shows what is wrong.
        async with AgentHarness(tmp_path, engines={**QUICK, "probe_seconds": 600}) as agent:
            await agent.wish(fake_wish())
            before = await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert before.pid is not None
            assert endpoint is not None
            os.kill(before.pid, signal.SIGUSR1)
            asking = asyncio.create_task(until_stuck(endpoint))
            suspect = await agent.shard("m-1.0", "Suspect")
            assert "makes no token although a request runs" in suspect.reason
            assert suspect.pid == before.pid
            assert await agent.endpoint("m-1") is None, "out of routing first"
            # It is given up now: that the engine is idle then does not make it well.
            asking.cancel()
            await asyncio.wait([asking])
            after = await agent.shard("m-1.0", "Ready", restarts=1)
            assert after.pid != before.pid
            kept = (agent.config.state_dir / "logs/m-1.0/suspect.log").read_text()
            assert kept.startswith("[llmgw] suspect in epoch 1: the engine says that it is healthy, but makes no token")
            assert "vllm:num_requests_running" in kept
            assert f"\n{before.pid} " in kept, "its threads"
            assert "fake engine listening" in kept, "its log"
            first = (agent.config.state_dir / "logs/m-1.0/first-failure.log").read_text()
            assert "and nothing changed for 2 s, so it is ended" in first

    asyncio.run(body())


def test_a_slow_engine_is_left_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, engines=QUICK) as agent:
            await agent.wish(fake_wish("m", "--tokens", "14", script="slow"))
            before = await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            # 7 s, more than three times what an engine may stand still.
            assert await send(endpoint, 60) == 200
            after = await agent.shard("m-1.0", "Ready", restarts=0)
            assert after.pid == before.pid
            assert not (agent.config.state_dir / "logs/m-1.0/suspect.log").exists(), "it was never a suspect"

    asyncio.run(body())


def test_an_engine_without_metrics_is_asked_when_it_is_idle(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, engines=QUICK) as agent:
            await agent.wish(fake_wish("m", "--no-metrics"))
            before = await agent.shard("m-1.0", "Ready")
            assert before.pid is not None
            os.kill(before.pid, signal.SIGUSR1)
            suspect = await agent.shard("m-1.0", "Suspect")
            assert "healthy, but POST /v1/chat/completions: no answer within 2 s" in suspect.reason
            after = await agent.shard("m-1.0", "Ready", restarts=1)
            assert after.pid != before.pid
            # A well one is asked too, and stays.
            await eventually(lambda: agent.engines("m-1.0") == [after.pid], within=WITHIN, what="one engine")

    asyncio.run(body())
