"""Weights from a web server: from ``llmgwctl model serve`` and a URL to an answer, with a real model and a real llama.cpp."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_testing.file_server import FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.llama_server import weights
from llmgw_testing.stack import Stack
from llmgw_testing.wait import wait_until
from llmgw_testing.weights import MIB, gguf, sha256

MODEL = "org/smollm2"
SMALL = ("--arg", "--ctx-size=2048", "--arg", "--threads=1")


@contextlib.contextmanager
def running(server: FileServer | HubServer) -> Iterator[None]:
    """It answers in a thread of its own."""
    loop = asyncio.new_event_loop()
    up, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with server:
            up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="files")
    thread.start()
    try:
        assert up.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.fixture
def files() -> Iterator[FileServer]:
    server = FileServer()
    with running(server):
        yield server


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    with running(server):
        yield server


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


def test_a_fleet_asks_the_hub_once_and_goes_on_when_the_one_who_asks_is_killed(tmp_path: Path, hub: HubServer) -> None:
    content = gguf({"general.architecture": "llama", "llama.block_count": 3}, padding=8 * MIB)
    hub.add("org/m", {"m-Q8_0.gguf": content})
    served = hub.content.files[hub.content_path(content)]
    served.bytes_per_second = MIB / 2
    nodes = ("n1", "n2", "n3")
    to_all = [word for node in nodes for word in ("--node", node)]

    def gets() -> int:
        return len(hub.content.gets(hub.content_path(content)))

    def part(node: str) -> int:
        found = list((tmp_path / f"agent-{node}/weights/partial").glob("sha256-*[0-9a-f]"))
        return found[0].stat().st_size if found else 0

    with Stack(tmp_path) as stack:
        stack.coordinator()
        settings = {"hub_endpoint": hub.url, "allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0}
        for node in nodes:
            stack.agent(node, weights=settings, metrics={"listen": None})

        def all_alive() -> bool:
            return [each["alive"] for each in stack.admin("/admin/v1/nodes")["nodes"]] == [True] * len(nodes)

        wait_until(all_alive, within=60, what="the agents")
        said: list[subprocess.CompletedProcess[str]] = []
        fetching = threading.Thread(
            target=lambda: said.append(stack.ctl("weights", "fetch", "hf:org/m:Q8_0", *to_all, expect=None)), name="fetch"
        )
        fetching.start()
        first = wait_until(lambda: next((node for node in nodes if part(node) > MIB), None), within=60, what="a download")
        assert first is not None
        stack.daemons[first].kill()
        served.bytes_per_second = None
        fetching.join(120)
        assert said[0].returncode == 3, "one node could not be asked to the end"
        others = [node for node in nodes if node != first]
        for node in others:
            assert f"{node}: here: 8.0 MiB in " in said[0].stdout
        assert gets() == 2, "by the one that was killed, and by one of the others"

        stack.daemons[first].start()
        wait_until(
            lambda: stack.ctl("weights", "list", "--node", first, expect=None).returncode == 0, within=60, what="it again"
        )
        stack.ctl("weights", "fetch", "hf:org/m:Q8_0", "--node", first)
        assert gets() == 2, "from the others"
        listed = stack.ask_ctl("weights", "list")
        assert [each["node"] for each in listed["nodes"] if len(each["weights"]) == 1] == list(nodes)
        assert listed["nodes"][0]["weights"][0]["facts"]["layers"] == 3
        removed = stack.ctl("weights", "remove", "hf:org/m:Q8_0")
        assert removed.stdout.count("8.0 MiB freed") == len(nodes)
