"""The checks that users' engine arguments go through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_proto.engines import COMMAND_FIELDS, check_args, check_command, check_env, fill_command


@pytest.mark.parametrize(
    "args",
    [
        ["--port", "9"],
        ["--port=9"],
        ["-c", "512", "--host", "0.0.0.0"],
        ["--api_key", "mine"],
        ["--api-key-file=/x"],
        ["-m", "/x.gguf"],
        ["-a", "name"],
        ["--rpc", "h:1"],
        ["--version"],
    ],
)
def test_a_reserved_flag_is_refused_by_name(args: list[str]) -> None:
    answer = check_args("llamacpp", args)
    assert answer is not None
    flag = next(each for each in args if each.startswith("-") and each != "-c").partition("=")[0].replace("_", "-")
    assert f" {flag} is reserved for engine llamacpp" in answer
    assert "remove it" in answer


@pytest.mark.parametrize("args", [[], ["-c", "4096", "-np", "4"], ["--metrics"], ["--model-alias-like"], ["-ngl", "99"]])
def test_other_flags_pass(args: list[str]) -> None:
    assert check_args("llamacpp", args) is None


def test_the_command_engine_reserves_nothing() -> None:
    assert check_args("command", ["--port", "9"]) is None


def test_a_nul_character_is_refused() -> None:
    assert "NUL" in (check_args("command", ["a\0b"]) or "")
    assert "NUL" in (check_command(["a\0b", "{port}"]) or "")


def test_a_command_must_say_where_the_port_goes() -> None:
    assert "{port} is missing" in (check_command(["serve"]) or "")
    assert check_command(["serve", "--port={port}", "--json={}"]) is None
    assert "{prot} is not a known field" in (check_command(["serve", "{prot}", "{port}"]) or "")


def test_env_markers_are_reserved() -> None:
    assert "LLMGW_SHARD is reserved" in (check_env({"LLMGW_SHARD": "x"}) or "")
    assert check_env({"": "x"}) is not None
    assert check_env({"OMP_NUM_THREADS": "2"}) is None


@given(st.lists(st.text(max_size=12)), st.dictionaries(st.sampled_from(sorted(COMMAND_FIELDS)), st.text(max_size=8)))
def test_filling_touches_only_known_fields(command: list[str], fields: dict[str, str]) -> None:
    filled = fill_command(command, fields)
    assert len(filled) == len(command)
    for before, after in zip(command, filled, strict=True):
        if "{" not in before:
            assert before == after
