"""Weights from a web server: from ``llmgwctl model serve`` and a URL to an answer, with a real model and a real llama.cpp."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_testing.file_server import FileServer
from llmgw_testing.llama_server import weights
from llmgw_testing.stack import Stack
from llmgw_testing.weights import sha256

MODEL = "org/smollm2"
SMALL = ("--arg", "--ctx-size=2048", "--arg", "--threads=1")


@pytest.fixture
def files() -> Iterator[FileServer]:
    """Answers in a thread of its own."""
    loop = asyncio.new_event_loop()
    server, up, stop = FileServer(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with server:
            up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="files")
    thread.start()
    try:
        assert up.wait(30)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def test_a_model_is_fetched_once_verified_served_and_kept(tmp_path: Path, files: FileServer) -> None:
    content = weights().read_bytes()
    # Slow enough for somebody who waits to be told how far it is.
    files.put("/smol.gguf", content, bytes_per_second=len(content) / 6)
    source = files.url("/smol.gguf")
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent(weights={"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0})
        router = stack.router()
        client = stack.client(router)

        wrong = stack.ctl("model", "serve", "wrong", f"{source}#sha256={'0' * 64}", *SMALL, expect=5)
        said = " ".join((wrong.stdout + wrong.stderr).split())
        assert "smol.gguf" in said
        assert "0" * 16 in said, "the digest that was promised"
        assert sha256(content)[:16] in said, "the digest that came"
        stack.ctl("model", "remove", "wrong")
        asked = len(files.gets("/smol.gguf"))

        served = stack.ctl("model", "serve", MODEL, f"{source}#sha256={sha256(content)}", *SMALL)
        assert "fetching" in served.stdout + served.stderr, "the wait is explained"
        stack.ready(MODEL, 1)
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=8
        )
        assert answer.choices[0].message.content

        stack.ctl("model", "scale", MODEL, "2")
        stack.ready(MODEL, 2)
        assert len(files.gets("/smol.gguf")) == asked + 1, "the second replica uses what is here"
        stack.ctl("model", "remove", MODEL)
        assert stack.engines() == []


def test_a_source_that_nobody_can_read_is_refused_when_it_is_applied(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        done = stack.ctl("model", "serve", "m", "https://h/", expect=2)
        assert "names no file; write https://host/path/model.gguf" in " ".join(done.stderr.split())
