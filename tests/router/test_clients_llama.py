"""The clients that people use, through the router, against a real llama.cpp: what they get is what the engine gives."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import anthropic
import openai
import pytest

from llmgw_testing.llama_server import LlamaServer
from llmgw_testing.router_process import RouterProcess

MODEL, EMBEDDER = "org/smol", "embedder"
KEY, ENGINE_KEY = "sk-client-1", "engine-secret-1"
QUESTION = "Name three colours."


@dataclass
class Stack:
    """A router with a key, in front of two engines; the text engine wants a key of its own."""

    router: RouterProcess
    engine: LlamaServer

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.router.url}/v1", api_key=KEY, max_retries=0, timeout=60)

    def direct(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.engine.url}/v1", api_key=ENGINE_KEY, max_retries=0, timeout=60)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.router.url, api_key=KEY, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with LlamaServer(MODEL, api_key=ENGINE_KEY) as text, LlamaServer(EMBEDDER, embedding=True) as vectors:
        endpoints = {
            "text": (f"http://:{ENGINE_KEY}@127.0.0.1:{text.port}", [MODEL]),
            "vectors": (vectors.url, [EMBEDDER]),
        }
        with RouterProcess(endpoints, keys={"client": KEY}) as router:
            yield Stack(router, text)


def ask(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0, seed=1
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    return answer.choices[0].message.content or ""


def test_openai_chat_is_the_same_as_from_the_engine_itself(stack: Stack) -> None:
    with stack.client() as client, stack.direct() as direct:
        assert ask(client) == ask(direct)


def test_openai_streaming_joins_to_the_same_text(stack: Stack) -> None:
    with stack.client() as client:
        whole = ask(client)
        with client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=24,
            temperature=0,
            seed=1,
            stream=True,
        ) as stream:
            chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert all(chunk.choices for chunk in chunks), "a usage chunk that nobody asked for"
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


def test_openai_streaming_hands_out_usage_when_asked(stack: Stack) -> None:
    with (
        stack.client() as client,
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        chunks = list(stream)
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8 or chunks[-2].choices[0].finish_reason == "stop"


def test_openai_async_runs_many_at_once(stack: Stack) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{stack.router.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": f"Count to {number}."}],
                    max_tokens=8,
                    stream=True,
                )
                async with stream:
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            texts = await asyncio.gather(*[one(number) for number in range(6)])
            assert all(texts)
            plain = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=4
            )
            assert plain.choices[0].message.content

    asyncio.run(run())


def test_openai_with_raw_response_shows_headers(stack: Stack) -> None:
    with stack.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=4,
            extra_headers={"x-request-id": "mine-1"},
        )
    assert raw.status_code == 200
    assert raw.headers["content-type"].startswith("application/json")
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse().choices[0].message.content


def test_openai_tools_reach_the_engine(stack: Stack) -> None:
    parameters: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    with stack.client() as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
            tools=[{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
            max_tokens=16,
        )
    message = answer.choices[0].message
    assert message.content or message.tool_calls


def test_openai_completions_responses_and_models(stack: Stack) -> None:
    with stack.client() as client:
        text = client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4)
        assert text.choices[0].text
        response = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=8)
        assert response.output_text
        with client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=8, stream=True) as stream:
            kinds = [event.type for event in stream]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert {model.id for model in client.models.list()} == {MODEL, EMBEDDER}
        assert client.models.retrieve(MODEL).id == MODEL


def test_openai_embeddings(stack: Stack) -> None:
    with stack.client() as client:
        answer = client.embeddings.create(model=EMBEDDER, input=["one", "two"])
    assert [len(item.embedding) for item in answer.data] == [576, 576]


def test_openai_errors_are_of_the_right_class(stack: Stack) -> None:
    with stack.client() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "Hi"}])
        assert missing.value.code == "model_not_found"
        # The engine itself refuses this one; its own message must come through.
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model=MODEL, messages=[], extra_body={"messages": "not a list"})
        assert refused.value.status_code in (400, 500)
    with openai.OpenAI(base_url=f"{stack.router.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            ask(stranger)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_anthropic_messages_streaming_and_token_count(stack: Stack) -> None:
    with stack.anthropic() as client:
        answer = client.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": QUESTION}])
        assert answer.content[0].type == "text"
        assert answer.usage.output_tokens == 8 or answer.stop_reason == "end_turn"
        with client.messages.stream(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": QUESTION}]) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text
        assert final.usage.output_tokens == 8 or final.stop_reason == "end_turn"
        count = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
        assert count.input_tokens > 0
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="nope", max_tokens=8, messages=[{"role": "user", "content": "Hi"}])
    with (
        anthropic.Anthropic(base_url=stack.router.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Hi"}])


def curl(stack: Stack, path: str, *arguments: str) -> str:
    argv = ["curl", "--silent", "--show-error", "--max-time", "60", "-H", f"Authorization: Bearer {KEY}", *arguments]
    return subprocess.run([*argv, f"{stack.router.url}{path}"], check=True, capture_output=True, text=True).stdout


def test_curl_plain_streamed_and_old_http(stack: Stack) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
    json_header = ("-H", "content-type: application/json")
    path = "/v1/chat/completions"
    assert json.loads(curl(stack, path, *json_header, "-d", body))["choices"]
    assert json.loads(curl(stack, path, "--http1.0", *json_header, "-d", body))["choices"]
    chunked = curl(stack, path, *json_header, "-H", "transfer-encoding: chunked", "-d", body)
    assert json.loads(chunked)["choices"]
    patient = curl(stack, path, *json_header, "-H", "expect: 100-continue", "-d", body)
    assert json.loads(patient)["choices"]
    streamed = curl(stack, path, "-N", *json_header, "-d", body.replace("}", "}", 1)[:-1] + ', "stream": true}')
    assert streamed.rstrip().endswith("data: [DONE]")
    head = curl(stack, "/v1/models", "--head")
    assert head.startswith("HTTP/1.1 200")
