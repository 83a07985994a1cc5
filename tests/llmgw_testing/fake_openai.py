"""What the fake engine says when no script tells it otherwise: a small, correct OpenAI-compatible engine.

Every answer is made of the words `w0 w1 w2 …`, one word a token, so a test can tell what was lost or doubled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from llmgw_testing.fake_wire import Exchange, Script

CHAT_PATH = "/v1/chat/completions"


def head(status: int, *headers: str) -> bytes:
    """A response head; each header is one `name: value` line."""
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *headers, "", ""]).encode("latin-1")


def json_reply(status: int, value: Any, *headers: str) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return head(status, "content-type: application/json", f"content-length: {len(body)}", *headers) + body


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


LAST_CHUNK = b"0\r\n\r\n"
STREAM_HEAD = head(200, "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")


def event(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_events(model: str, words: Iterable[str], *, prompt: int = 7, include_usage: bool = True) -> list[bytes]:
    """The SSE events of one streamed chat completion, `[DONE]` included."""
    words = list(words)
    base = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1700000000, "model": model}

    def choice(delta: dict[str, str], finish: str | None = None) -> bytes:
        return event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    events = [choice({"role": "assistant", "content": ""})]
    events += [choice({"content": word}) for word in words]
    events.append(choice({}, "stop"))
    if include_usage:
        events.append(event({**base, "choices": [], "usage": usage(prompt, len(words))}))
    events.append(event("[DONE]"))
    return events


def chat_object(model: str, text: str, *, prompt: int = 7, completion: int = 3) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1700000000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage(prompt, completion),
    }


def raw(*writes: bytes, close: bool = False) -> Script:
    """A script that sends these writes as they are, each on its own."""

    async def script(exchange: Exchange) -> None:
        for data in writes:
            await exchange.send(data)
        if close:
            exchange.close()

    return script


def reply(status: int, value: Any, *headers: str) -> Script:
    return raw(json_reply(status, value, *headers))


def error_reply(status: int, message: str = "made to fail", *headers: str) -> Script:
    return reply(status, {"error": {"message": message, "type": "server_error", "code": status}}, *headers)


def stream(events: Iterable[bytes], *, pause: float = 0.0, finish: bool = True) -> Script:
    """A script that streams events, one chunk and one write each."""
    events = list(events)

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        for item in events:
            await exchange.send(chunk(item))
            if pause:
                await exchange.pause(pause)
        if finish:
            await exchange.send(LAST_CHUNK)

    return script


def silent() -> Script:
    """Accepts the request and never says a word."""

    async def script(exchange: Exchange) -> None:
        await exchange.silence()

    return script


def reset_after(*writes: bytes, settle: float = 0.05) -> Script:
    """Sends the writes, lets the peer read them, then tears the connection down with RST."""

    async def script(exchange: Exchange) -> None:
        for data in writes:
            await exchange.send(data)
        await exchange.pause(settle)
        exchange.reset()

    return script


def close_at_once() -> Script:
    """Takes the request and closes without an answer."""

    async def script(exchange: Exchange) -> None:
        exchange.close()

    return script


class Engine:
    """The normal engine: health, models, metrics, chat, completions, embeddings, tokenize, messages.

    `tokens` words per answer unless `max_tokens` says less, `token_seconds` apart. With `wedged` it accepts generation
    requests and never makes a token while `/health` stays 200; with `healthy` false `/health` answers 503.
    """

    def __init__(self, models: list[str], *, api_key: str | None = None, tokens: int = 5, token_seconds: float = 0.0) -> None:
        self.models = models
        self.api_key = api_key
        self.tokens = tokens
        self.token_seconds = token_seconds
        self.healthy = True
        self.wedged = False
        self.metered = True
        self.running = 0
        self.generated = 0
        self.prompted = 0
        self.requests = 0

    async def answer(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path
        if path == "/health":
            await exchange.send(json_reply(200 if self.healthy else 503, {}))
        elif path == "/metrics" and self.metered:
            text = self.metrics().encode()
            await exchange.send(head(200, "content-type: text/plain; version=0.0.4", f"content-length: {len(text)}") + text)
        elif self.api_key is not None and request.values("authorization") != [f"Bearer {self.api_key}"]:
            await exchange.send(json_reply(401, {"error": {"message": "Unauthorized", "type": "authentication_error"}}))
        elif path == "/v1/models":
            cards = [
                {"id": name, "object": "model", "created": 1700000000, "owned_by": "fake", "max_model_len": 4096}
                for name in self.models
            ]
            await exchange.send(json_reply(200, {"object": "list", "data": cards}))
        elif request.method == "POST" and path in GENERATORS:
            await self._generate(exchange, path)
        elif request.method == "POST" and path in ("/v1/embeddings", "/tokenize"):
            await exchange.send(json_reply(200, self._at_once(path, request.json())))
        else:
            await exchange.send(json_reply(404, {"detail": "Not Found"}))

    async def _generate(self, exchange: Exchange, path: str) -> None:
        body = exchange.request.json()
        self.running += 1
        self.requests += 1
        self.prompted += 7
        try:
            if self.wedged:
                await exchange.silence()
            count = min(self.tokens, int(body.get("max_tokens") or body.get("max_completion_tokens") or self.tokens))
            words = [f"w{i} " for i in range(count)]
            if body.get("stream"):
                await self._stream(exchange, path, body, words)
            else:
                for _ in words:
                    await asyncio.sleep(self.token_seconds)
                    self.generated += 1
                await exchange.send(json_reply(200, GENERATORS[path](body["model"], "".join(words), len(words))))
        finally:
            self.running -= 1

    async def _stream(self, exchange: Exchange, path: str, body: dict[str, Any], words: list[str]) -> None:
        wish = (body.get("stream_options") or {}).get("include_usage", False)
        model = body["model"]
        if path == CHAT_PATH:
            events = chat_events(model, words, include_usage=wish)
        elif path == "/v1/completions":
            events = completion_events(model, words, wish)
        else:
            events = message_events(model, words)
        await exchange.send(STREAM_HEAD)
        for item in events:
            await exchange.send(chunk(item))
            if b"[DONE]" not in item and b'"choices":[]' not in item:
                await asyncio.sleep(self.token_seconds)
                self.generated += 1
        await exchange.send(LAST_CHUNK)

    def _at_once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            return {"tokens": [1, 2, 3], "count": 3, "max_model_len": 4096}
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": i, "embedding": [0.1, 0.2, 0.3]} for i in range(len(inputs))]
        return {"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 3, "total_tokens": 3}}

    def metrics(self) -> str:
        label = f'{{model_name="{self.models[0] if self.models else ""}"}}'
        return (
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{label} {self.running}\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{label} 0\n"
            f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{label} {self.prompted}\n"
            f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{label} {self.generated}\n"
            f"# TYPE vllm:request_success_total counter\nvllm:request_success_total{label} {self.requests}\n"
        )


def completion_events(model: str, words: list[str], include_usage: bool) -> list[bytes]:
    base = {"id": "cmpl-fake", "object": "text_completion", "created": 1700000000, "model": model}
    events = [event({**base, "choices": [{"index": 0, "text": word, "finish_reason": None}]}) for word in words]
    events.append(event({**base, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}))
    if include_usage:
        events.append(event({**base, "choices": [], "usage": usage(7, len(words))}))
    events.append(event("[DONE]"))
    return events


def completion_object(model: str, text: str, completion: int) -> dict[str, Any]:
    return {
        "id": "cmpl-fake",
        "object": "text_completion",
        "created": 1700000000,
        "model": model,
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": usage(7, completion),
    }


def message_object(model: str, text: str, completion: int) -> dict[str, Any]:
    return {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": completion},
    }


def message_events(model: str, words: list[str]) -> list[bytes]:
    def named(name: str, value: dict[str, Any]) -> bytes:
        return f"event: {name}\n".encode() + event({"type": name, **value})

    start = {**message_object(model, "", 1), "content": [], "stop_reason": None}
    end = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": len(words)}}
    return [
        named("message_start", {"message": start}),
        named("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        *[named("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}}) for word in words],
        named("content_block_stop", {"index": 0}),
        named("message_delta", end),
        named("message_stop", {}),
    ]


def _chat(model: str, text: str, completion: int) -> dict[str, Any]:
    return chat_object(model, text, completion=completion)


GENERATORS = {
    CHAT_PATH: _chat,
    "/v1/completions": completion_object,
    "/v1/messages": message_object,
}
