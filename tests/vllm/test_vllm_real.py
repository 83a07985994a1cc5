"""A real vLLM: installed when a model needs it, served through the router, killed, and its command line held to its parser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import openai
import pytest

from llmgw_proto.engines import check_args
from llmgw_testing.real_engines import MODEL, Served
from llmgw_testing.vllm_real import START, VERSION, tiny_spec
from llmgw_testing.wait import wait_until


def test_the_installation_was_visible_and_is_in_the_inventory(served: Served) -> None:
    print(f"from apply to Ready: {served.seconds:.0f} s")
    assert any(f"installing engine vllm {VERSION}" in each and "installing packages" in each for each in served.seen), (
        served.seen
    )
    (replica,) = served.stack.replicas(MODEL)
    assert (replica["engine"], replica["engine_version"]) == ("vllm", VERSION)
    engines = served.stack.admin("/admin/v1/nodes/n1")["inventory"]["engines"]
    assert VERSION in [each["version"] for each in engines if each["name"] == "vllm"]


def test_chat_and_stream_with_usage_through_the_router(served: Served) -> None:
    whole = served.site.ask(MODEL)
    stream = served.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    words, usage = "", None
    for chunk in stream:
        words += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert words == whole
    assert usage is not None
    assert usage.completion_tokens == 8
    assert served.client.responses.create(model=MODEL, input="Hello", max_output_tokens=4).object == "response"


def test_only_what_the_model_can_do_is_offered(served: Served) -> None:
    with pytest.raises(openai.APIStatusError):
        served.client.embeddings.create(model=MODEL, input="Hello")


def test_a_key_is_demanded_and_nobody_can_read_it(served: Served) -> None:
    (replica,) = served.stack.replicas(MODEL)
    with (
        openai.OpenAI(base_url=f"{replica['url']}/v1", api_key="none", max_retries=0, timeout=60) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    argv = Path(f"/proc/{replica['pid']}/cmdline").read_bytes()
    environment = Path(f"/proc/{replica['pid']}/environ").read_bytes()
    key = next(each for each in environment.split(b"\0") if each.startswith(b"VLLM_API_KEY=")).partition(b"=")[2]
    assert key
    assert key not in argv


def test_a_reserved_flag_is_refused_when_the_model_is_applied(served: Served) -> None:
    done = served.stack.apply(tiny_spec("org/other", served.site.source, "--tensor-par=2"), expect=None)
    assert done.returncode != 0
    assert "--tensor-parallel-size is reserved for engine vllm" in done.stdout + done.stderr


def test_whatever_the_real_parser_takes_for_a_reserved_flag_is_refused(served: Served) -> None:
    """Every spelling, every beginning: what vLLM would take for a flag that is refused in full is refused as well."""
    script = """
import json
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())


def fail(message):
    raise ValueError(message)


parser.error = fail
found = {}
for flag, action in parser._option_string_actions.items():
    for end in range(2, len(flag) + 1):
        try:
            options = parser._parse_optional(flag[:end])
        except ValueError:
            continue
        options = options if isinstance(options, list) else [options]
        if len(options) == 1 and options[0] and options[0][0]:
            found[flag[:end]] = options[0][0].option_strings
print("FOUND", json.dumps(found))
"""
    done = subprocess.run([served.python, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout.split("FOUND ")[1])
    assert len(found) > 500
    refused = {spelling for spelling in found if check_args("vllm", [spelling]) is not None}
    for spelling, flags in found.items():
        if any(flag in refused for flag in flags):
            assert spelling in refused, f"{spelling} means {flags}"
        elif spelling in flags:
            assert spelling not in refused, f"{spelling} is a flag of its own"
    for must in ("--port", "--host", "--api-key", "--model", "--served-model-name", "-tp", "-pp", "--nnodes", "--headless"):
        assert must in refused & found.keys(), must


def test_a_killed_engine_is_restarted(served: Served) -> None:
    (before,) = served.stack.replicas(MODEL)
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: before["pid"] not in served.stack.engines(), within=30, what="the killed engine to be gone")

    def again() -> bool:
        (now,) = served.stack.replicas(MODEL)
        return bool(now["state"] == "Ready" and now["pid"] != before["pid"])

    wait_until(again, within=START, what="another vLLM to be ready", every=0.5)
    assert served.site.ask(MODEL)
    (after,) = served.stack.replicas(MODEL)
    assert after["restarts"] == before["restarts"] + 1


def test_what_vllm_itself_refuses_is_told_before_it_is_started(served: Served) -> None:
    before = served.stack.engines()
    served.stack.apply(tiny_spec("org/refused", served.site.source, "--no-such-flag"), "--no-wait")
    said = served.site.rejection("org/refused")
    assert f"vLLM {VERSION} does not take them (unrecognized arguments: --no-such-flag)" in said
    (replica,) = served.stack.replicas("org/refused")
    assert replica["pid"] is None
    assert set(served.stack.engines()) <= set(before)
    served.stack.ctl("model", "remove", "org/refused")
