"""Several who want the same weights at once, of whom only one cannot load them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from llmgw_agent.weights import ModelFacts, NoSpaceError, UnloadableError
from llmgw_testing.file_server import FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.weights import MIB, gguf, opened, safetensors, sha256


def never(_: ModelFacts) -> str | None:
    return "this llama.cpp is too old"


def test_what_one_engine_cannot_load_comes_for_the_others(tmp_path: Path) -> None:
    content = gguf({"general.architecture": "llama"}, padding=4 * MIB)

    async def run() -> None:
        async with FileServer() as files, opened(tmp_path) as store:
            files.put("/m.gguf", content, bytes_per_second=2 * MIB)
            source = f"{files.url('/m.gguf')}#sha256={sha256(content)}"
            first = asyncio.create_task(store.ensure(source, pin="old.0", judge=never))
            others = [store.ensure(source, pin="new.0", judge=lambda _: None), store.ensure(source)]
            found = await asyncio.gather(*others)
            assert {each.path.read_bytes() == content for each in found} == {True}
            with pytest.raises(UnloadableError, match="too old"):
                await first
            (stored,) = await store.list()
            assert stored.pinned_by == ["new.0"]

    asyncio.run(run())


def test_the_judge_does_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    asked: list[threading.Thread] = []

    def judge(facts: ModelFacts) -> str | None:
        asked.append(threading.current_thread())
        return f"no {facts.format}"

    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            tensors = safetensors({"a": ("F32", [1], 4)}) + bytes(MIB)
            hub.add("org/m", {"config.json": b"{}", "model.safetensors": tensors})
            hub.content.files[hub.content_path(tensors)].bytes_per_second = 1000
            with pytest.raises(UnloadableError, match="no safetensors"):
                await store.ensure("hf:org/m", judge=judge)

    asyncio.run(run())
    assert asked
    assert threading.main_thread() not in asked


def test_a_signature_in_a_source_is_told_to_nobody(tmp_path: Path) -> None:
    content = gguf({"general.architecture": "llama"}, padding=4 * MIB)

    async def run() -> None:
        async with FileServer() as files:
            files.put("/m.gguf", content, bytes_per_second=2 * MIB)
            source = f"{files.url('/m.gguf')}?signature=SECRET#sha256={sha256(content)}"
            async with opened(tmp_path / "a") as store:
                with pytest.raises(UnloadableError, match=r"m\.gguf") as unloadable:
                    await store.ensure(source, judge=never)
            async with opened(tmp_path / "b", limit_bytes=MIB) as store:
                with pytest.raises(NoSpaceError, match=r"m\.gguf") as full:
                    await store.ensure(source)
            assert "SECRET" not in f"{unloadable.value} {full.value}"

    asyncio.run(run())
