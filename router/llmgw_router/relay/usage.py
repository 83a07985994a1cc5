"""Reads what an engine says about tokens, in every form that the API families have. Pure."""

from __future__ import annotations

import re

import msgspec


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Inner(msgspec.Struct):
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or one event: chat and completions, responses (``response``), messages (``message``)."""

    usage: _Usage | None = None
    response: _Inner | None = None
    message: _Inner | None = None
    choices: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
# A flat object with at most one level inside, as every known usage object is.
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{[^{}]{0,4096}(?:\{[^{}]{0,4096}\}[^{}]{0,4096}){0,16}\})')


class Usage:
    """Tokens of one request as the engine told them; None where it did not."""

    __slots__ = ("cached", "completion", "prompt")

    def __init__(self) -> None:
        self.prompt: int | None = None
        self.completion: int | None = None
        self.cached: int | None = None

    @property
    def known(self) -> bool:
        return self.prompt is not None or self.completion is not None

    def read_answer(self, document: bytes) -> None:
        """Takes the usage from a whole JSON answer, which need not tell any."""
        # It stands near the end.
        if document.rfind(b'"usage"') >= 0:
            self.read(document)

    def read(self, document: bytes) -> bool:
        """Takes the usage from one JSON document. Returns whether it is a chunk that tells usage and nothing else."""
        try:
            answer = _decode(document)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            # Not JSON to the letter, such as a bare NaN among the logprobs.
            self.scan(document)
            return False
        for inner in (answer.response, answer.message):
            if inner is not None and inner.usage is not None:
                self._take(inner.usage)
        if answer.usage is not None:
            self._take(answer.usage)
        return answer.usage is not None and answer.choices == []

    def scan(self, part: bytes) -> None:
        """Takes the last usage object found anywhere in a part of a document that is too big to read as a whole."""
        for match in _OBJECT.finditer(part):
            try:
                self._take(_decode_usage(match[1]))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue

    def _take(self, usage: _Usage) -> None:
        """Later figures win; a figure that is absent does not erase one that is known (messages tell them in two events)."""
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
        completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
        details = usage.prompt_tokens_details or usage.input_tokens_details
        cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
        if prompt is not None and prompt >= 0:
            self.prompt = prompt
        if completion is not None and completion >= 0:
            self.completion = completion
        if cached is not None and cached >= 0:
            self.cached = cached
