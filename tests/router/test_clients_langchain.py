"""LangChain's ChatOpenAI through the router, against the fake engine."""

from __future__ import annotations

import httpx2
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.router_process import RouterProcess


def test_chat_openai_invokes_and_streams() -> None:
    with (
        FakeEngine("m", tokens=3) as engine,
        RouterProcess({"e1": (engine.url, ["m"])}, keys={"client": "sk-1"}) as router,
        httpx2.Client() as http,
    ):
        chat = ChatOpenAI(model="m", base_url=f"{router.url}/v1", api_key=SecretStr("sk-1"), max_retries=0, http_client=http)
        answer = chat.invoke("Hello")
        assert answer.content == "w0 w1 w2 "
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == 3
        assert "".join(str(piece.content) for piece in chat.stream("Hello")) == "w0 w1 w2 "
