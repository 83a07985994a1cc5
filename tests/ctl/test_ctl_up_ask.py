"""Asking the question of ``up --ask``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from llmgw_base.clock import SystemClock
from llmgw_ctl.errors import StackError
from llmgw_ctl.up.ask import Answer, ask
from llmgw_testing.fake_openai import chat_events, event


def question(handler: Any) -> tuple[Answer, str, dict[str, Any]]:
    """Asks a server with this handler; returns the answer, what was written, and the request's body."""
    written: list[str] = []
    bodies: list[dict[str, Any]] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        response: web.StreamResponse = await handler(request)
        return response

    async def run() -> Answer:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return await ask(url, "m", "Why?", clock=SystemClock(), write=written.append)
        finally:
            await runner.cleanup()

    return asyncio.run(run()), "".join(written), bodies[0]


def streaming(*events: bytes) -> Any:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for each in events:
            await response.write(each)
        await response.write_eof()
        return response

    return handler


def test_the_answer_is_written_piece_by_piece_and_counted_by_the_engine() -> None:
    answer, text, body = question(streaming(*chat_events("m", ["Because", " of", " light"])))
    assert text == "Because of light"
    assert answer.tokens == 3
    assert 0 < answer.first_token <= answer.last_token
    assert body["messages"] == [{"role": "user", "content": "Why?"}]
    assert body["stream"] is True


def test_without_usage_the_pieces_are_counted() -> None:
    answer, _, _ = question(streaming(*chat_events("m", ["a", "b"], include_usage=False)))
    assert answer.tokens == 2


def test_an_answer_that_was_cut_says_so() -> None:
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "word"}, "finish_reason": "length"}
    answer, _, _ = question(streaming(event({**base, "choices": [choice]}), event("[DONE]")))
    assert answer.cut
    assert "cut there" in answer.describe()


def test_an_error_names_the_model_and_the_cause() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no replica answers", "type": "server_error"}}, status=503)

    with pytest.raises(StackError, match=r"asking m failed: .*no replica answers"):
        question(refuse)


def test_an_empty_answer_is_an_error() -> None:
    with pytest.raises(StackError, match="m gave an empty answer"):
        question(streaming(*chat_events("m", [])))


def test_speed_leaves_out_the_wait_for_the_first_token() -> None:
    answer = Answer(tokens=11, first_token=2.0, last_token=3.0)
    assert answer.tokens_per_second == 10
    assert answer.describe() == "time to first token 2000 ms, 10.0 tokens per second (11 tokens)"
    assert Answer(1, 2.0, 2.0).tokens_per_second == 0
