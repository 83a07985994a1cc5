"""The look at a request's body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.api.peek import ask_for_usage, peek, with_model
from llmgw_router.errors import ApiError


def test_fields_are_read_and_the_rest_skipped() -> None:
    fields = peek(
        b'{"model":"m","messages":[{"model":"inner"}],"stream":true,"stream_options":{"include_usage":true,"x":1},"user":"u"}'
    )
    assert (fields.model, fields.stream, fields.user) == ("m", True, "u")
    assert fields.stream_options is not None
    assert fields.stream_options.include_usage is True


def test_null_is_absent() -> None:
    fields = peek(b'{"model":null,"stream":null,"stream_options":null,"max_tokens":null}')
    assert (fields.model, fields.stream, fields.stream_options, fields.max_tokens) == (None, None, None, None)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"not json", "invalid_json", None),
        (b"\xef\xbb\xbf{}", "invalid_json", None),
        (b'{"model":"m","x":"\xff"}', "invalid_json", None),
        (b'{"model":"m"', "invalid_json", None),
        (b'{"model":"m"} trailing', "invalid_json", None),
        (b'{"model":"m","x":NaN}', "invalid_json", None),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", None),
        (b'[{"model":"m"}]', "invalid_type", None),
        (b'"model"', "invalid_type", None),
        (b'{"model":7}', "invalid_type", "model"),
        (b'{"model":"m","stream":"yes"}', "invalid_type", "stream"),
        (b'{"model":"m","stream_options":{"include_usage":1}}', "invalid_type", "stream_options.include_usage"),
        (b'{"model":"m","max_tokens":"many"}', "invalid_type", "max_tokens"),
        (b'{"model":"m","max_tokens":1e999}', "invalid_type", "max_tokens"),
        (b'{"model":"m","model":"n"}', "duplicate_key", "model"),
        (b'{"model":"m","stream":true,"stream":false}', "duplicate_key", "stream"),
        (b'{"model":"m","mod\\u0065l":"n"}', "duplicate_key", "model"),
    ],
)
def test_refused(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        peek(body)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
    assert caught.value.message.endswith(".")


def test_a_key_that_stands_twice_further_inside_is_the_engines_business() -> None:
    body = b'{"tools":[{"model":1},{"model":2}],"model":"m","x":{"model":3,"model":4}}'
    assert peek(body).model == "m"


def test_escapes_in_texts_are_no_reason_to_refuse() -> None:
    assert peek(b'{"model":"m","messages":[{"content":"caf\\u00e9 \\u0041\\": x"}]}').model == "m"


scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=8)
json_values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=6), scalars, max_size=3)


@given(st.dictionaries(st.text(max_size=6).filter(lambda key: key not in ("model", "stream", "user")), json_values, max_size=4))
def test_asking_for_usage_changes_nothing_else(more: dict[str, Any]) -> None:
    more.pop("stream_options", None)
    value = {**more, "model": "m", "stream": True}
    body = json.dumps(value).encode()
    assert json.loads(ask_for_usage(body, peek(body))) == {**value, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("options", [{"include_usage": False}, {}, None, {"continuous_usage_stats": True}])
def test_asking_for_usage_keeps_the_other_options(options: dict[str, bool] | None) -> None:
    body = json.dumps({"model": "m", "stream_options": options}).encode()
    wanted = {**(options or {}), "include_usage": True}
    assert json.loads(ask_for_usage(body, peek(body)))["stream_options"] == wanted


def test_model_is_renamed_and_the_rest_kept_to_the_byte() -> None:
    assert with_model(b'{"model":"org/m","x":1.50,"y":"\\u00e9"}', "m") == b'{"model":"m","x":1.50,"y":"\\u00e9"}'
