"""The agent is killed while it has engines: they go on, and the next agent finds them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from llmgw_testing.stack import Stack, chat, fake_model
from llmgw_testing.wait import wait_until

ADOPT_SECONDS = 5
TOKENS = 120


def test_a_stream_goes_on_and_the_engine_is_adopted(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        agent = stack.agent()
        router = stack.router()
        stack.apply(fake_model("m", "--tokens", str(TOKENS), "--token-seconds", "0.05"))
        (before,) = stack.ready("m", 1)
        (engine,) = stack.engines()
        client = stack.client(router)

        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        words = 0
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                words += 1
            if words == 5 and agent.running:
                agent.kill()
        assert words >= TOKENS, "the stream lost tokens"

        agent.start()
        wait_until(lambda: "adopted" in agent.log(), within=ADOPT_SECONDS, what="the log line of the adoption")
        (after,) = stack.ready("m", 1)
        assert (after["pid"], after["epoch"], after["restarts"]) == (before["pid"], before["epoch"], before["restarts"])
        assert stack.engines() == [engine]
        assert chat(router.url, "m")[0] == 200


def test_adoption_takes_less_than_five_seconds(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        agent = stack.agent()
        stack.router()
        stack.apply(fake_model("m"))
        stack.ready("m", 1)
        (engine,) = stack.engines()
        adopted = agent.log().count("adopted")

        agent.kill()
        agent.start()
        wait_until(lambda: agent.log().count("adopted") > adopted, within=ADOPT_SECONDS, what="the log line of the adoption")
        stack.ready("m", 1)
        assert stack.engines() == [engine]


def test_an_engine_that_died_while_the_agent_was_away_is_started_again(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        agent = stack.agent()
        router = stack.router()
        stack.apply(fake_model("m"))
        stack.ready("m", 1)
        (engine,) = stack.engines()
        agent.kill()
        os.kill(engine, signal.SIGKILL)
        agent.start()
        wait_until(lambda: stack.engines() not in ([], [engine]), within=30, what="a new engine")
        stack.ready("m", 1)
        # The router hears of the endpoint on its own, a moment before or after the admin API.
        wait_until(lambda: chat(router.url, "m")[0] == 200, within=10, what="an answer")
