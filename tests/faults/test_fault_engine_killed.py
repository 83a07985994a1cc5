"""An engine is killed: it leaves the router's table, and comes back after a restart with backoff."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from llmgw_testing.load import Load
from llmgw_testing.stack import Stack, chat, fake_model, request
from llmgw_testing.wait import wait_until


def listed(router_url: str) -> bytes:
    return request(f"{router_url}/v1/models")[1]


def test_gone_from_the_table_within_a_second_and_back_after_a_restart(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent(restart={"first_delay": 3, "longest_delay": 10})
        router = stack.router()
        stack.apply(fake_model("m"))
        stack.ready("m", 1)
        assert b'"m"' in listed(router.url)
        (engine,) = stack.engines()

        os.kill(engine, signal.SIGKILL)
        wait_until(
            lambda: b'"m"' not in listed(router.url), within=1.0, what="the model to leave the router's table", every=0.01
        )
        status, body = chat(router.url, "m")
        assert status in (404, 503)
        assert b'"error"' in body

        wait_until(lambda: chat(router.url, "m")[0] == 200, within=60, what="the restarted engine to answer")
        (replica,) = stack.ready("m", 1)
        assert replica["restarts"] == 1
        (restarted,) = stack.engines()
        assert restarted != engine


def test_with_a_second_replica_no_request_fails(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent()
        router = stack.router()
        stack.apply(fake_model("m", replicas={"min": 2}))
        stack.ready("m", 2)
        with Load(router.url, "m", pause=0.1) as load:
            wait_until(lambda: load.done > 3, within=30, what="some requests")
            os.kill(stack.engines()[0], signal.SIGKILL)
            seen = load.done
            wait_until(lambda: load.done > seen + 10, within=30, what="requests after the kill")
            stack.ready("m", 2)
        # The one request that was on the killed engine may have been cut after its first byte; nothing else may fail.
        assert len(load.failures) <= 1, load.failures


def test_an_engine_that_always_dies_stops_being_started_and_says_why(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent(restart={"attempts": 2, "interval_seconds": 60, "first_delay": 0.2, "longest_delay": 0.5})
        stack.apply(fake_model("m", "--script", "exit-1"), "--no-wait")

        def failed() -> bool:
            found = stack.replicas("m")
            return len(found) == 1 and found[0]["state"] == "Failed" and "the breaker is open" in found[0]["reason"]

        wait_until(failed, within=60, what="the breaker to open", every=0.2)
        (replica,) = stack.replicas("m")
        assert replica["next_attempt_at"] is None
        assert "memory ran out" in replica["reason"]
        assert stack.engines() == []
        assert "out of memory" in stack.ctl("replica", "logs", replica["id"]).stdout
        assert stack.ctl("model", "show", "m").stdout.count("memory ran out") >= 1
