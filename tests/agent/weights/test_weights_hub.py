from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from llmgw_agent.weights import (
    AccessDeniedError,
    DigestMismatchError,
    InUseError,
    SourceInvalidError,
    SourceNotFoundError,
    SourceUnavailableError,
)
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.weights import data, gguf, opened, safetensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
TENSORS = safetensors({"a": ("BF16", [64, 64], 8192)})
SERVABLE = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": data(5000, seed=3),
    "tokenizer_config.json": b'{"chat_template": "x"}',
    "model.safetensors": TENSORS,
    "nested/extra.json": b"{}",
}
REST = {"README.md": b"read me", "pytorch_model.bin": data(2000, seed=4), "original/consolidated.00.pth": data(2000, seed=5)}


def test_a_repository_becomes_a_folder_with_what_serving_needs(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            repo = hub.add("org/model", SERVABLE | REST)
            weights = await store.ensure("hf:org/model")
            found = {
                str(each.relative_to(weights.path)): each.read_bytes() for each in weights.path.rglob("*") if each.is_file()
            }
            assert found == SERVABLE
            assert weights.revision == repo.revisions["main"]
            assert weights.facts is not None
            assert (weights.facts.layers, weights.facts.kv_bytes_per_token) == (2, 2 * 2 * 16 * 2 * 2)
            assert weights.facts.chat_template
            assert weights.facts.weights_bytes == len(TENSORS)

    asyncio.run(run())


def test_what_was_fetched_needs_no_hub_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub:
            hub.add("org/model", SERVABLE)
            async with opened(tmp_path, hub_endpoint=hub.url) as store:
                first = await store.ensure("hf:org/model")
            hub.down = True
            async with opened(tmp_path, hub_endpoint=hub.url) as store:
                assert await store.ensure("hf:org/model") == first
                with pytest.raises(SourceUnavailableError, match="503"):
                    await store.ensure("hf:org/model", refresh=True)

    asyncio.run(run())


def test_offline_mode_is_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/model", SERVABLE)
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
            with pytest.raises(SourceUnavailableError, match="HF_HUB_OFFLINE"):
                await store.ensure("hf:org/model")
            assert hub.seen == []

    asyncio.run(run())


@pytest.mark.parametrize("pattern", ["m-Q4_K_M.gguf", "*q4*.gguf", "*Q4*", "Q4_K_M", "q4_k_m"])
def test_one_model_of_many_is_chosen(tmp_path: Path, pattern: str) -> None:
    async def run() -> None:
        files = {"m-Q4_K_M.gguf": gguf(padding=2000), "m-Q8_0.gguf": gguf(padding=3000), "README.md": b"x"}
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/gguf", files)
            if pattern == "*q4*.gguf":
                with pytest.raises(SourceNotFoundError, match=r"m-Q4_K_M\.gguf, m-Q8_0\.gguf"):
                    await store.ensure(f"hf:org/gguf:{pattern}")
                return
            weights = await store.ensure(f"hf:org/gguf:{pattern}")
            assert weights.path.name == "m-Q4_K_M.gguf"
            assert weights.path.read_bytes() == files["m-Q4_K_M.gguf"]

    asyncio.run(run())


def test_several_models_and_no_choice_is_an_error_that_names_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/gguf", {"a.gguf": gguf(padding=2000), "b.gguf": gguf(padding=2001)})
            with pytest.raises(SourceInvalidError, match=r"a\.gguf, b\.gguf"):
                await store.ensure("hf:org/gguf")

    asyncio.run(run())


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/gated", SERVABLE, gated=True)
            hub.add("org/model", SERVABLE)
            with pytest.raises(AccessDeniedError, match="accept its terms"):
                await store.ensure("hf:org/gated")
            with pytest.raises(SourceNotFoundError, match="check the name"):
                await store.ensure("hf:org/none")
            with pytest.raises(SourceNotFoundError, match="no revision 'v9'"):
                await store.ensure("hf:org/model@v9")
            with pytest.raises(SourceNotFoundError, match=r"no file 'none\.gguf'"):
                await store.ensure("hf:org/model:none.gguf")

    asyncio.run(run())


def test_the_token_goes_to_the_hub_and_nowhere_else(tmp_path: Path) -> None:
    async def run() -> None:
        token = tmp_path / "token"
        token.write_text("hf_secret\n")
        async with HubServer() as hub, opened(tmp_path / "w", hub_endpoint=hub.url, hub_token_file=token) as store:
            hub.add("org/private", SERVABLE, token="hf_secret")
            await store.ensure("hf:org/private")
            assert {each.authorization for each in hub.seen} == {"Bearer hf_secret"}
            assert {each.authorization for each in hub.content.seen} == {None}

    asyncio.run(run())


def test_a_hub_that_points_elsewhere_does_not_take_the_token_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, FileServer() as other, opened(tmp_path, hub_endpoint=hub.url, hub_token="hf_s") as store:
            repo = hub.add("org/private", SERVABLE, token="hf_s")
            hub.more_pages_at = other.url("")
            other.put(f"/api/models/org/private/tree/{repo.revisions['main']}", b"[]")
            await store.preflight("hf:org/private")
            assert [each.authorization for each in other.seen] == [None]

    asyncio.run(run())


@pytest.mark.parametrize("large", [True, False])
def test_wrong_bytes_of_a_small_or_large_file_are_found(tmp_path: Path, large: bool) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            repo = hub.add("org/model", SERVABLE)
            if large:
                hub.content.files[hub.content_path(TENSORS)].always = Fault(wrong=True)
            else:
                repo.wrong["config.json"] = SERVABLE["config.json"].replace(b"64", b"65")
            with pytest.raises(DigestMismatchError, match=r"model\.safetensors .*sha256:" if large else r"config\.json .*git:"):
                await store.ensure("hf:org/model")
            hub.content.files[hub.content_path(TENSORS)].always = None
            repo.wrong.clear()
            weights = await store.ensure("hf:org/model")
            assert (weights.path / "config.json").read_bytes() == SERVABLE["config.json"]

    asyncio.run(run())


def test_only_what_is_wrong_is_fetched_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/model", SERVABLE)
            weights = await store.ensure("hf:org/model")
            before = len(hub.content.seen)
            file = weights.path / "tokenizer.json"
            file.chmod(0o644)
            file.write_bytes(data(5000, seed=9))
            assert (await store.ensure("hf:org/model")).path == weights.path
            assert file.read_bytes() == SERVABLE["tokenizer.json"]
            assert len(hub.content.seen) == before + 1

    asyncio.run(run())


def test_a_new_version_is_taken_when_asked_for_and_nothing_runs_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/model", SERVABLE)
            first = await store.ensure("hf:org/model", pin="shard")
            repo = hub.add("org/model", SERVABLE | {"tokenizer.json": data(4000, seed=8)})
            assert (await store.ensure("hf:org/model")).revision == first.revision
            with pytest.raises(InUseError, match="name the revision"):
                await store.ensure("hf:org/model", refresh=True)
            await store.release("hf:org/model", "shard")
            fresh = await store.ensure("hf:org/model", refresh=True)
            assert fresh.revision == repo.revisions["main"] != first.revision
            assert (fresh.path / "tokenizer.json").read_bytes() == data(4000, seed=8)
            assert len(list((tmp_path / "blobs" / "sha256").iterdir())) == 2, "the old tokenizer is gone"

    asyncio.run(run())


def test_facts_of_a_repository_without_fetching_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, opened(tmp_path, hub_endpoint=hub.url) as store:
            hub.add("org/model", SERVABLE | REST)
            facts = await store.inspect("hf:org/model")
            assert (facts.architecture, facts.parameters, facts.chat_template) == ("LlamaForCausalLM", 4096, True)
            assert await store.list() == []

    asyncio.run(run())
