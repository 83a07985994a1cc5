"""Why an engine ended."""

from __future__ import annotations

import signal

import pytest

from llmgw_agent.engines.command import Command
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.shard.exits import classify

LLAMA = LlamaCpp().patterns
COMMAND = Command().patterns


@pytest.mark.parametrize(
    ("log", "says", "final"),
    [
        (
            [
                "0.1 E error loading model architecture: unknown model architecture: 'xyz'",
                "0.1 E srv load_model: failed to load model, '/x.gguf'",
            ],
            "does not know the model's architecture xyz. Use a newer llama.cpp",
            True,
        ),
        (
            ["E srv    load_model: failed to load model, '/x.gguf'"],
            "the weights could not be loaded. The file is damaged",
            True,
        ),
        (["error: invalid argument: --bogus"], "does not take the argument --bogus. Correct the model's args.", True),
        (["ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"], "memory ran out", False),
    ],
)
def test_llama_cpp_tells_its_reasons(log: list[str], says: str, final: bool) -> None:
    reason = classify(1, log, LLAMA, was_ready=False)
    assert reason.text.startswith("the engine exited with 1: ")
    assert says in reason.text
    assert reason.final is final


def test_a_taken_port_is_known() -> None:
    assert classify(
        1, ["E srv start: couldn't bind HTTP server socket, hostname: h, port: 1"], LLAMA, was_ready=False
    ).port_taken
    assert classify(1, ["OSError: [Errno 98] Address already in use"], COMMAND, was_ready=False).port_taken


def test_words_in_the_log_of_an_engine_that_served_are_no_reason_to_give_up() -> None:
    log = ["failed to load model 'lora'", "address already in use"]
    reason = classify(1, log, LLAMA, was_ready=True)
    assert not reason.final
    assert not reason.port_taken


def test_sigkill_from_nowhere_is_most_likely_the_kernel() -> None:
    reason = classify(-signal.SIGKILL, ["fine"], LLAMA, was_ready=True)
    assert reason.text.startswith("the engine was killed by SIGKILL, most likely by the kernel because memory ran out: look at")


def test_an_illegal_instruction_at_the_start_is_the_wrong_build() -> None:
    reason = classify(-signal.SIGILL, ["loading"], LLAMA, was_ready=False)
    assert reason.final
    assert "built for another kind of CPU. Install a build for this one." in reason.text
    assert not classify(-signal.SIGILL, ["loading"], LLAMA, was_ready=True).final


def test_without_a_known_reason_the_last_line_is_shown() -> None:
    assert classify(3, ["first", "last words", ""], COMMAND, was_ready=False).text == (
        'the engine exited with 3; its last line was "last words". The log tells more: `llmgwctl replica logs`.'
    )
    assert "and wrote nothing" in classify(0, [], COMMAND, was_ready=False).text
    assert classify(None, [], COMMAND, was_ready=False).text.startswith("the engine ended and")
    assert "SIGSEGV" in classify(-signal.SIGSEGV, [], COMMAND, was_ready=False).text
    assert "signal 50" in classify(-50, [], COMMAND, was_ready=False).text
