"""Asks one question through the router with the ``openai`` client and measures the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from llmgw_base.clock import Clock
from llmgw_ctl.errors import BadInputError, StackError

ANSWER_SECONDS = 120.0
#: An answer to look at, not an essay: small models ramble, and on two cores that takes a while.
MAX_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """Times in seconds from the moment the question was sent."""

    tokens: int
    first_token: float
    last_token: float
    cut: bool = False

    @property
    def tokens_per_second(self) -> float:
        """While it streams: the first token's wait is not part of it."""
        spent = self.last_token - self.first_token
        return (self.tokens - 1) / spent if spent > 0 and self.tokens > 1 else 0.0

    def describe(self) -> str:
        return (
            f"time to first token {self.first_token * 1000:.0f} ms, "
            f"{self.tokens_per_second:.1f} tokens per second ({self.tokens} tokens{', cut there' if self.cut else ''})"
        )


def require_client() -> None:
    """Raises BadInputError when the openai package is not installed; does not import it."""
    if find_spec("openai") is None:
        raise BadInputError("--ask needs the package openai, which is not installed", "pip install openai")


def load_client() -> None:
    """Imports the client, which takes most of a second; call it in a thread while other things start."""
    import_module("openai")


async def ask(router_url: str, model: str, question: str, *, clock: Clock, write: Callable[[str], None]) -> Answer:
    """Streams the answer to ``write`` piece by piece.

    Raises:
        StackError: no answer, or an empty one.
    """
    from openai import AsyncOpenAI, OpenAIError

    started = clock.monotonic()
    first = last = 0.0
    pieces = reported = 0
    finish: str | None = None
    try:
        async with AsyncOpenAI(base_url=f"{router_url}/v1", api_key="unused", max_retries=2, timeout=ANSWER_SECONDS) as client:
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                stream=True,
                max_tokens=MAX_TOKENS,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                if chunk.usage is not None:
                    reported = chunk.usage.completion_tokens
                if not chunk.choices:
                    continue
                finish = chunk.choices[0].finish_reason or finish
                text = chunk.choices[0].delta.content
                if not text:
                    continue
                last = clock.monotonic() - started
                first = first or last
                pieces += 1
                write(text)
    except OpenAIError as error:
        raise StackError(f"asking {model} failed: {error}", "see the logs of the router and the agent") from error
    if not pieces:
        raise StackError(f"{model} gave an empty answer", "see the engine's log: llmgwctl replica logs REPLICA")
    return Answer(reported or pieces, first, last, cut=finish == "length")
