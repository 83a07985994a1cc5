"""The agent's gRPC service: logs for whoever has the token, and nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from llmgw_agent.config import AgentConfig
from llmgw_agent.logs.files import pin_first_failure
from llmgw_agent.rpc.server import credentials, start_server
from llmgw_agent.rpc.service import AgentService
from llmgw_base.clock import SystemClock
from llmgw_base.config import ConfigError, TlsSection
from llmgw_base.net import Listen
from llmgw_proto import agent_pb2, agent_pb2_grpc
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.wait import eventually

TOKEN = "the-token"


@asynccontextmanager
async def serving(logs: Path, *, token: str | None = TOKEN, tls: TlsSection | None = None) -> AsyncIterator[Listen]:
    config = AgentConfig.model_validate({"listen": "127.0.0.1:0", "tls": tls})
    service = AgentService(lambda: token, lambda shard: logs / shard.replace("/", "_"), SystemClock())
    server, listen = await start_server(config, service)
    try:
        yield listen
    finally:
        await server.stop(0)


def call(channel: aio.Channel, shard: str = "m-1.0", token: str = TOKEN, **fields: Any) -> Any:
    stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
    return stub.Logs(agent_pb2.LogsRequest(shard=shard, **fields), metadata=(("authorization", f"Bearer {token}"),), timeout=30)


async def read(answers: Any) -> bytes:
    return b"".join([chunk.data async for chunk in answers])


async def refusal(answers: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await read(answers)
    return caught.value.code(), caught.value.details() or ""


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "engine.log").open("a") as file:
        file.write(text)
    return folder


def test_the_last_lines_come_at_once_and_with_follow_the_next_ones_too(tmp_path: Path) -> None:
    async def body() -> None:
        folder = write(tmp_path / "m-1.0", "one\ntwo\nthree\n")
        async with serving(tmp_path) as listen, aio.insecure_channel(str(listen)) as channel:
            assert await read(call(channel, tail=2)) == b"two\nthree\n"
            assert await read(call(channel)) == b"one\ntwo\nthree\n"
            got: list[bytes] = []
            following = call(channel, tail=1, follow=True)

            async def follow() -> None:
                async for chunk in following:
                    got.append(chunk.data)

            task = asyncio.create_task(follow())
            await eventually(lambda: b"".join(got) == b"three\n", within=20, what="the last line")
            write(folder, "four\n")
            (folder / "engine.log").rename(folder / "engine.log.1")
            write(folder, "five\n")
            await eventually(lambda: b"".join(got) == b"three\nfour\nfive\n", within=20, what="lines over a rotation")
            following.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_only_the_token_opens_and_only_existing_logs_are_found(tmp_path: Path) -> None:
    async def body() -> None:
        write(tmp_path / "m-1.0", "one\n")
        async with serving(tmp_path) as listen, aio.insecure_channel(str(listen)) as channel:
            assert await refusal(call(channel, token="wrong")) == (grpc.StatusCode.UNAUTHENTICATED, "wrong agent token")
            assert await refusal(call(channel, token="")) == (grpc.StatusCode.UNAUTHENTICATED, "wrong agent token")
            for shard in ("n-1.0", "", "../m-1.0"):
                code, details = await refusal(call(channel, shard))
                assert code is grpc.StatusCode.NOT_FOUND
                assert f"shard {shard!r} has no log on this node" in details
        async with serving(tmp_path, token=None) as listen, aio.insecure_channel(str(listen)) as channel:
            assert (await refusal(call(channel)))[0] is grpc.StatusCode.UNAVAILABLE

    asyncio.run(body())


def test_lines_can_be_chosen_by_what_they_say_and_kept_failures_read(tmp_path: Path) -> None:
    async def body() -> None:
        folder = write(tmp_path / "m-1.0", "one\ntwo\nthree\ntwenty\n")
        async with serving(tmp_path) as listen, aio.insecure_channel(str(listen)) as channel:
            assert await read(call(channel, grep="^t")) == b"two\nthree\ntwenty\n"
            assert await read(call(channel, grep="^tw", tail=1)) == b"twenty\n"
            assert await read(call(channel, since=time.time() + 1000)) == b""
            assert await read(call(channel, since=time.time() - 1000)) == b"one\ntwo\nthree\ntwenty\n"
            assert await refusal(call(channel, file="suspect")) == (
                grpc.StatusCode.NOT_FOUND,
                "no suspect is kept of this shard; it has not come to one since its log began",
            )
            pin_first_failure(folder, 1, "it broke", ["a", "b"])
            failure = b"[llmgw] first failure of epoch 1: it broke\na\nb\n"
            assert await read(call(channel, file="first-failure")) == failure
            assert await read(call(channel, file="first-failure", grep="b$", tail=1)) == b"b\n"
            wrong: list[tuple[dict[str, Any], str]] = [
                ({"grep": "(a"}, "unclosed group"),
                ({"file": "other"}, "there is no log 'other'; use engine, first-failure, suspect"),
                ({"since": -1.0}, "no time in seconds"),
                ({"since": float("nan")}, "no time in seconds"),
                ({"file": "first-failure", "follow": True}, "can neither be followed nor read since a time"),
            ]
            for fields, said in wrong:
                code, details = await refusal(call(channel, **fields))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert said in details

    asyncio.run(body())


def test_with_tls_both_sides_must_be_vouched_for(tmp_path: Path) -> None:
    async def body() -> None:
        write(tmp_path / "m-1.0", "one\n")
        (tmp_path / "pki").mkdir()
        tls = TestAuthority(tmp_path / "pki").issue("n1")
        ca, cert, key = tls.ca.read_bytes(), tls.cert.read_bytes(), tls.key.read_bytes()
        known = grpc.ssl_channel_credentials(ca, key, cert)
        unknown = grpc.ssl_channel_credentials(ca)
        async with serving(tmp_path, tls=tls) as listen:
            async with aio.secure_channel(str(listen), known) as channel:
                assert await read(call(channel, tail=1)) == b"one\n"
            async with aio.secure_channel(str(listen), unknown) as channel:
                assert (await refusal(call(channel)))[0] is grpc.StatusCode.UNAVAILABLE
            async with aio.insecure_channel(str(listen)) as channel:
                assert (await refusal(call(channel)))[0] is grpc.StatusCode.UNAVAILABLE

    asyncio.run(body())


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(ConfigError, match=r"tls\.ca: .*ca\.pem cannot be read: No such file"):
        credentials(TlsSection(ca=missing, cert=missing, key=missing))


def test_a_taken_port_is_named_with_its_holder(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as listen:
            config = AgentConfig.model_validate({"listen": str(listen)})
            with pytest.raises(ConfigError, match=rf"listen: cannot listen on {listen}: .* holds the port; stop it or choose"):
                await start_server(config, AgentService(lambda: None, lambda _: tmp_path, SystemClock()))

    asyncio.run(body())
