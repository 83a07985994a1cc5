"""What a llama.cpp can load, by the names in its files; and what becomes of a model that it cannot."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.engines.base import Located
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.llamacpp_knows import files_of, judge_of, objection, type_name
from llmgw_agent.weights import ModelFacts
from llmgw_proto.records import AssignmentRecord
from llmgw_testing.agent_harness import AgentHarness
from llmgw_testing.file_server import FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.weights import MIB, gguf, safetensors, sha256

SETTINGS = {"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0}


def facts(architecture: str = "llama", *types: str, form: str = "gguf") -> ModelFacts:
    return ModelFacts(format=form, architecture=architecture, tensor_types=dict.fromkeys(types, 1))


def library(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0" + b"".join(each.encode() + b"\0" for each in ("llama", "q4_K", *names)))
    return path


def test_a_name_that_is_in_no_file_is_not_known(tmp_path: Path) -> None:
    files = [library(tmp_path / "libllama.so", "xqwen2"), library(tmp_path / "libggml.so", "f16", "q6_K")]
    assert objection(files, facts("qwen2", "F16", "Q6_K", "Q4_K")) is None, "linkers let names end others"
    assert "does not know the architecture 'mamba9'" in (objection(files, facts("mamba9")) or "")
    assert "does not know the quantisation IQ1_M" in (objection(files, facts("llama", "IQ1_M", "F16")) or "")
    assert objection(files, facts("llama", "type 77")) is None, "what has no name here is left to llama.cpp"
    assert "loads GGUF files" in (objection(files, facts(form="safetensors")) or "")


def test_files_that_are_not_llama_cpps_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrapper").write_text("#!/bin/sh\nexec real\n")
    (tmp_path / "empty").write_bytes(b"")
    for files in ([], [tmp_path / "wrapper"], [tmp_path / "empty"], [tmp_path / "gone"]):
        assert objection(files, facts("mamba9", "IQ1_M")) is None


@pytest.mark.parametrize(
    ("program", "there"),
    [
        ("usr/bin/llama-server", "usr/lib/x86_64-linux-gnu/libllama.so.0"),
        ("usr/bin/llama-server", "usr/lib/x86_64-linux-gnu/ggml/libggml-base.so"),
        ("opt/llama/llama-server", "opt/llama/libllama.so"),
        ("opt/llama/bin/llama-server", "opt/llama/lib/libggml.so.1"),
    ],
)
def test_libraries_are_found_where_packages_put_them(tmp_path: Path, program: str, there: str) -> None:
    (tmp_path / program).parent.mkdir(parents=True)
    (tmp_path / program).write_bytes(b"\x7fELF")
    wanted = library(tmp_path / there)
    located = Located("1", "", (str(tmp_path / program),))
    assert wanted.resolve() in files_of(located)
    assert judge_of(located)(facts("mamba9")) is not None


def test_an_environment_of_its_own_is_looked_through(tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_bytes(b"\x7fELF")
    wanted = library(tmp_path / "env/lib/python3.11/site-packages/xllamacpp/xllamacpp.abi3.so")
    assert wanted.resolve() in files_of(Located("1", "", (str(python), "x.py"), home=tmp_path / "env"))


def test_the_real_one_knows_what_it_knows() -> None:
    assert importlib.util.find_spec("xllamacpp") is not None
    located = LlamaCpp("/does/not/exist")._locate_package()
    assert located is not None
    judge = judge_of(located)
    types = ("F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ2_XXS", "IQ4_NL")
    for architecture in ("llama", "qwen2", "qwen3moe", "gemma2", "deepseek2", "phi3", "bert"):
        assert judge(facts(architecture, *types)) is None, architecture
    assert judge(facts("nosuchmodel")) is not None
    assert [type_name(each) for each in ("Q4_K", "IQ2_XXS", "F16", "Q4_0")] == ["q4_K", "iq2_xxs", "f16", "q4_0"]


def wish(source: str) -> AssignmentRecord:
    fields: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "m", "epoch": 1, "engine": "llamacpp"}
    return AssignmentRecord(**fields, source=source)


def test_a_model_that_cannot_be_loaded_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    content = gguf({"general.architecture": "nosuchmodel"}, padding=16 * MIB)

    async def run() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=SETTINGS) as agent:
            files.put("/m.gguf", content, bytes_per_second=MIB)
            await agent.wish(wish(f"{files.url('/m.gguf')}#sha256={sha256(content)}"))
            record = await agent.shard("m-1.0", "Rejected")
            assert "does not know the architecture 'nosuchmodel'" in record.reason
            assert "install a newer llama.cpp" in record.reason
            assert files.sent("/m.gguf") < len(content), "the header was enough"

    asyncio.run(run())


def test_a_repository_without_a_gguf_is_refused_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, AgentHarness(tmp_path, weights={**SETTINGS, "hub_endpoint": hub.url}) as agent:
            tensors = safetensors({"a": ("F32", [1], 4)}) + bytes(MIB)
            hub.add("org/m", {"config.json": b"{}", "model.safetensors": tensors})
            hub.content.files[hub.content_path(tensors)].bytes_per_second = 1000
            await agent.wish(wish("hf:org/m"))
            record = await agent.shard("m-1.0", "Rejected")
            assert "llama.cpp loads GGUF files" in record.reason

    asyncio.run(run())
