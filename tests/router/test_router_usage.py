"""Reading token counts from answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.relay.usage import Usage


def read(document: object) -> tuple[int | None, int | None, int | None]:
    usage = Usage()
    usage.read(document if isinstance(document, bytes) else json.dumps(document).encode())
    return usage.prompt, usage.completion, usage.cached


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}}, (5, 6, 4)),
        ({"usage": {"prompt_tokens": 5, "total_tokens": 5}}, (5, None, None)),
        ({"usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}}, (3, 2, 1)),
        ({"usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 2}}, (3, 2, 2)),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 0}}}, (1, 0, None)),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 8}}}, (8, None, None)),
        ({"usage": None}, (None, None, None)),
        ({"usage": {"prompt_tokens": "many"}}, (None, None, None)),
        ({"usage": {"prompt_tokens": -1}}, (None, None, None)),
        ({"data": [{"usage": {"prompt_tokens": 9}}]}, (None, None, None)),
        (b'{"logprobs":[-Infinity,NaN],"usage":{"prompt_tokens":5,"completion_tokens":6}}', (5, 6, None)),
        (b"no json at all", (None, None, None)),
    ],
)
def test_every_form(document: object, found: tuple[int | None, ...]) -> None:
    assert read(document) == found


def test_both_ends_of_a_long_answer_are_searched() -> None:
    usage = Usage()
    usage.scan(b'{"model":"m","usage" : {"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":2}},"data":[0.1,0.2,')
    assert (usage.prompt, usage.cached) == (5, 2)


@given(st.binary(max_size=200))
def test_nothing_an_engine_says_makes_it_fail(junk: bytes) -> None:
    usage = Usage()
    usage.read(junk)
    usage.read(b'{"usage":' + junk + b"}")
    usage.scan(b'"usage":{' + junk)


def test_the_last_figures_win() -> None:
    usage = Usage()
    for tokens in (1, 2, 3):
        usage.read(json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}).encode())
    assert (usage.prompt, usage.completion) == (7, 3)
