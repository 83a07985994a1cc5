"""Engine drivers: what is run, and what is refused."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_agent.engines import xllamacpp_server
from llmgw_agent.engines.base import Checked, Host, Located, Place
from llmgw_agent.engines.client import EngineClient, EngineSilentError
from llmgw_agent.engines.command import Command
from llmgw_agent.engines.facts import listed_facts
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.probe import probe
from llmgw_agent.engines.registry import find_driver, installed, make_drivers
from llmgw_agent.engines.weights import check_gguf, local_path
from llmgw_agent.errors import RejectedError
from llmgw_agent.shard.connections import open_connections
from llmgw_proto.records import AssignmentRecord
from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import reply
from llmgw_testing.fake_wire import Exchange
from llmgw_testing.llama_server import weights

PLACE = Place("127.0.0.1", 4321, "secret-key")
HOST = Host(memory_limit=1 << 40, memory_free=1 << 40)


def wish(**fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "org/m", "epoch": 1, "engine": "llamacpp"}
    return AssignmentRecord(**(data | fields))


def llama_argv(*args: str, program: str = "/usr/bin/llama-server", **fields: Any) -> list[str]:
    driver = LlamaCpp()
    located = Located("1", program, (program,))
    return driver.launch(wish(args=list(args), **fields), located, Checked(Path("/w.gguf"), 0), PLACE).argv


def test_llama_server_gets_its_place_and_sensible_defaults() -> None:
    assert llama_argv() == [
        *["/usr/bin/llama-server", "-m", "/w.gguf", "--host", "127.0.0.1", "--port", "4321", "--alias", "org/m"],
        *["-np", "4", "--kv-unified", "-c", "8192", "-b", "512", "--cache-ram", "256", "--slots", "--metrics"],
    ]


def test_what_the_user_says_goes_before_the_defaults() -> None:
    argv = llama_argv("--parallel", "8", "--cache-ram=0", "--no-slots", "--metrics", "-c", "512", "-ub", "64")
    assert argv[9:] == ["--parallel", "8", "--cache-ram=0", "--no-slots", "--metrics", "-c", "512", "-ub", "64"]


def test_on_gpus_the_context_is_left_to_llama_cpp() -> None:
    assert "-c" not in llama_argv(gpus=["GPU-a"])


def test_the_key_is_in_the_environment_and_gpus_are_chosen_by_uuid() -> None:
    located = Located("1", "x", ("x",))
    launch = LlamaCpp().launch(wish(gpus=["GPU-a", "GPU-b"], env={"A": "b"}), located, Checked(Path("/w"), 0), PLACE)
    assert "secret-key" not in " ".join(launch.argv)
    assert launch.environment["LLAMA_API_KEY"] == "secret-key"
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert launch.environment["A"] == "b"


@pytest.mark.parametrize(
    ("args", "capabilities", "expected"),
    [
        ([], None, ["chat", "completions"]),
        (["--embeddings"], None, ["chat", "completions", "embeddings"]),
        (["--reranking"], None, ["rerank"]),
        ([], ["embeddings"], ["embeddings"]),
    ],
)
def test_capabilities_follow_the_flags(args: list[str], capabilities: list[str] | None, expected: list[str]) -> None:
    assert LlamaCpp().capabilities(wish(args=args, capabilities=capabilities)) == expected


def test_the_packages_server_takes_what_the_driver_gives_and_refuses_the_rest_by_name() -> None:
    located = LlamaCpp("/no/such/llama-server").locate()
    assert located is None, "a configured path is not replaced by something else"
    driver = LlamaCpp()
    located = driver.locate()
    assert located is not None
    assert located.version
    assert driver.launch(wish(), located, Checked(Path("/w"), 0), PLACE).argv[-2:] == ["--slots", "--metrics"]
    for args, says in ((["--draft-max", "3"], "--draft-max"), (["-c", "much"], "-c/--ctx-size: invalid int value: 'much'")):
        with pytest.raises(RejectedError) as caught:
            driver.launch(wish(args=args), located, Checked(Path("/w"), 0), PLACE)
        assert says in str(caught.value)
        assert "install a llama-server binary" in str(caught.value)


def test_the_packages_server_maps_its_flags() -> None:
    argv = ["-m", "/w", "--port", "1", "-a", "name", "--api-key", "k", "-c", "99", "-np", "3", "-kvu", "-t", "2", "-tb", "3"]
    params = xllamacpp_server.parameters(xllamacpp_server.parse([*argv, "--rerank", "--no-jinja", "-b", "64", "--metrics"]))
    assert (params.model.path, params.port, params.model_alias, params.api_keys) == ("/w", 1, {"name"}, ["k"])
    assert (params.n_ctx, params.n_parallel, params.kv_unified, params.n_batch) == (99, 3, True, 64)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (2, 3)
    assert (params.embedding, params.use_jinja, params.endpoint_metrics, params.endpoint_slots) == (True, False, True, True)
    assert xllamacpp_server.main(["--bogus"]) == 2


def test_a_llama_server_binary_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'version: 4321 (abc)' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    driver = LlamaCpp()
    assert driver.locate() == Located("4321", str(program), (str(program),))
    assert [(info.name, info.version) for info in installed({"llamacpp": driver})] == [("llamacpp", "4321")]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("/a/b.gguf", "/a/b.gguf"),
        ("file:///a/b%20c.gguf", "/a/b c.gguf"),
        ("file://localhost/a", "/a"),
        (None, None),
        ("https://h/x", None),
        ("file://host/x", None),
        ("relative.gguf", None),
    ],
)
def test_sources(source: str | None, path: str | None) -> None:
    if path is not None:
        assert local_path(source) == Path(path)
        return
    with pytest.raises(RejectedError):
        local_path(source)


def test_a_gguf_file_is_known_by_its_head(tmp_path: Path) -> None:
    assert check_gguf(weights()) == weights().stat().st_size
    for content, says in (
        (b"GGUF\x01\0\0\0", "version 1"),
        (b"GGU", "not a GGUF file"),
        (b"PK\x03\x04abcd", "not a GGUF file"),
    ):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(RejectedError, match=says):
            check_gguf(path)
    with pytest.raises(RejectedError, match="a part of the path is not a folder"):
        check_gguf(tmp_path / "x.gguf/y")


def test_weights_larger_than_the_node_are_refused() -> None:
    with pytest.raises(RejectedError, match=r"more than the 1000 bytes that this node has for engines; use a smaller quant"):
        LlamaCpp().check(wish(source=str(weights())), Host(memory_limit=1000, memory_free=1000))
    checked = LlamaCpp().check(wish(source=str(weights())), HOST)
    assert checked.memory_bytes > checked.weights.stat().st_size if checked.weights else False
    assert LlamaCpp().check(wish(source=str(weights()), memory_bytes=77), HOST).memory_bytes == 77


def test_a_command_is_filled_in(tmp_path: Path) -> None:
    one = wish(
        engine="command", source=str(tmp_path), command=["sh", "{host}:{port}", "{model}", "{name}"], args=["-k={api_key}"]
    )
    driver = Command()
    checked = driver.check(one, HOST)
    launch = driver.launch(one, Located("", "", ()), checked, PLACE)
    assert launch.argv == ["sh", "127.0.0.1:4321", str(tmp_path), "org/m", "-k=secret-key"]
    assert launch.environment["ENGINE_API_KEY"] == "secret-key"
    for bad, says in (
        ({"command": ["sh"]}, "{port} is missing"),
        ({"env": {"LLMGW_SHARD": "x"}}, "LLMGW_SHARD is reserved"),
        ({"source": "/no/such/folder"}, "weights /no/such/folder: no such file or folder"),
    ):
        with pytest.raises(RejectedError) as caught:
            driver.check(one.model_copy(update=bad), HOST)
        assert says in str(caught.value)


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(RejectedError, match="engine 'x' is unknown to this agent; use one of llamacpp, vllm, sglang, command"):
        find_driver(make_drivers(), "x")


def with_engine(engine: FakeEngine, body: Any) -> Any:
    async def run() -> Any:
        async with aiohttp.ClientSession() as session:
            return await body(EngineClient(session, engine.url, "K"))

    return asyncio.run(run())


def test_facts_prefer_the_models_own_name() -> None:
    with FakeEngine("a", "b") as two, FakeEngine("only") as one:
        assert with_engine(two, lambda client: listed_facts(client, "b")).served_name == "b"
        assert with_engine(two, lambda client: listed_facts(client, "c")).served_name == "c"
        assert with_engine(one, lambda client: listed_facts(client, "c")).served_name == "only"


def test_the_probe_keeps_what_answers_and_tells_what_did_not() -> None:
    async def no_chat(exchange: Exchange) -> None:
        if "chat" in exchange.request.path:
            await reply(501, {"error": "no chat template"})(exchange)
        else:
            await reply(200, {"choices": [{"text": "x"}]})(exchange)

    with FakeEngine("m") as engine:
        engine.default = no_chat
        assert with_engine(engine, lambda client: probe(client, "m", ["chat", "completions"], sure=False)) == ["completions"]
        assert with_engine(engine, lambda client: probe(client, "m", ["rerank"], sure=False)) == ["rerank"]
        with pytest.raises(EngineSilentError, match=r"the first chat request was answered 501: .*no chat template"):
            with_engine(engine, lambda client: probe(client, "m", ["chat"], sure=True))
        assert with_engine(engine, lambda client: probe(client, "m", ["completions", "chat"], sure=True)) == [
            "completions",
            "chat",
        ]


def test_silence_is_named() -> None:
    with FakeEngine("m") as engine:
        url = engine.url

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            await EngineClient(session, url, "K").get("/health", 1)

    with pytest.raises(EngineSilentError, match="GET /health: "):
        asyncio.run(ask())


def test_open_connections_are_counted_by_port(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st\n"
    (tmp_path / "tcp").write_text(
        head
        + "   0: 0100007F:10E1 00000000:0000 0A\n   1: 0100007F:10E1 0100007F:9999 01\n   2: 0100007F:9999 0100007F:10E1 01\n"
    )
    (tmp_path / "tcp6").write_text(head + "   0: 0000000000000000FFFF00000100007F:10E1 0:1111 01\n")
    assert open_connections(4321, tmp_path) == 2
    assert open_connections(1, tmp_path / "missing") == 0
