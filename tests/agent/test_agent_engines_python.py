"""The drivers of vLLM and SGLang: what is run, what is refused, and what their last words mean."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.engines.base import Checked, Host, Located, Place
from llmgw_agent.engines.client import Answer, EngineClient
from llmgw_agent.engines.environment import number_of, value_of
from llmgw_agent.engines.hf_folder import check_hf
from llmgw_agent.engines.probe import probe
from llmgw_agent.engines.sglang import Sglang
from llmgw_agent.engines.vllm import Vllm
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.environments import Environments
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.shelf import Shelf
from llmgw_agent.shard.exits import classify
from llmgw_proto.engines import check_args
from llmgw_proto.records import AssignmentRecord

NOWHERE = Shelf(Environments(Path("/nonexistent")))
VLLM, SGLANG = Vllm(NOWHERE), Sglang(NOWHERE)
PLACE = Place("127.0.0.1", 4321, "secret-key")
HOST = Host(memory_limit=1 << 40, memory_free=1 << 40)
GIB = 1 << 30


def wish(engine: str = "vllm", **fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "org/m", "epoch": 1, "engine": engine}
    return AssignmentRecord(**(data | fields))


def located(engine: str) -> Located:
    return Located("1.0", "", ("/e/1.0-abc/bin/python", *RECIPES[engine].arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 6}))
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"0" * 1000)
    return tmp_path


def test_vllm_gets_its_place_and_its_share_of_the_gpus() -> None:
    one = wish(gpus=["GPU-a", "GPU-b"], args=["--max-model-len", "4096"], env={"VLLM_API_KEY": "mine", "A": "b"})
    launch = VLLM.launch(one, located("vllm"), Checked(Path("/w"), 0), PLACE)
    assert launch.argv == [
        *["/e/1.0-abc/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/w", "--served-model-name", "org/m"],
        *["--host", "127.0.0.1", "--port", "4321", "--tensor-parallel-size", "2"],
        *["--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--max-model-len", "4096"],
    ]
    environment = launch.environment
    assert environment["VLLM_API_KEY"] == "secret-key"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment["A"] == "b"
    assert environment["VIRTUAL_ENV"] == "/e/1.0-abc"
    assert environment["PATH"].startswith("/e/1.0-abc/bin:")
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment


def test_sglang_takes_its_key_where_nobody_reads_it() -> None:
    launch = SGLANG.launch(wish("sglang", gpus=["GPU-a"]), located("sglang"), Checked(Path("/w"), 0), PLACE)
    assert "secret-key" not in " ".join(launch.argv)
    assert launch.environment["SGLANG_API_KEY"] == "secret-key"
    tail = launch.argv[2:]
    assert tail == [
        *["--model-path", "/w", "--served-model-name", "org/m", "--host", "127.0.0.1", "--port", "4321"],
        *["--enable-metrics", "--enable-cache-report"],
    ]


def test_the_start_of_sglang_adds_the_key_to_its_arguments_and_keeps_it_out_of_the_log(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "import logging, sys\nassert __name__ == '__main__'\nassert sys.argv[1:] == ['--port', '1', '--api-key', 'secret']\n"
        "logging.basicConfig(stream=sys.stdout)\nlogging.warning('%s with %d', sys.argv, 7)\nlogging.warning('100% secret')\n"
    )
    argv = [sys.executable, *RECIPES["sglang"].arguments, "--port", "1"]
    environment = {"SGLANG_API_KEY": "secret", "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "WARNING:root:['sglang', '--port', '1', '--api-key', '***'] with 7",
        "WARNING:root:100% ***",
    ]


def test_what_the_user_says_goes_before_the_defaults() -> None:
    args = ["--no-enable-prompt-tokens-details", "--no_disable_uvicorn_access_log"]
    argv = VLLM.launch(wish(args=args), located("vllm"), Checked(Path("/w"), 0), PLACE).argv
    assert argv[-2:] == args
    assert "--enable-prompt-tokens-details" not in argv
    assert "--disable-uvicorn-access-log" not in argv


def test_on_cpu_memory_for_the_cache_is_bounded_and_counted(folder: Path) -> None:
    one = wish(source=str(folder))
    assert VLLM.launch(one, located("vllm"), Checked(folder, 0), PLACE).environment["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert 5 * GIB < VLLM.check(one, HOST).memory_bytes < 6 * GIB
    assert VLLM.check(wish(source=str(folder), env={"VLLM_CPU_KVCACHE_SPACE": "40"}), HOST).memory_bytes > 41 * GIB
    assert VLLM.check(wish(source=str(folder), memory_bytes=7), HOST).memory_bytes == 7
    with pytest.raises(RejectedError, match="is not a whole number of GiB"):
        VLLM.check(wish(source=str(folder), env={"VLLM_CPU_KVCACHE_SPACE": "a lot"}), HOST)


@pytest.mark.parametrize("driver", [VLLM, SGLANG])
def test_heads_that_cannot_be_split_are_told_before_the_engine_starts(driver: Vllm | Sglang, folder: Path) -> None:
    driver.check(wish(driver.name, source=str(folder), gpus=["a", "b", "c"]), HOST)
    with pytest.raises(RejectedError, match="6 attention heads cannot be split over 4 GPUs; take 3"):
        driver.check(wish(driver.name, source=str(folder), gpus=["a", "b", "c", "d"]), HOST)


def test_weights_that_cannot_be_are_refused(tmp_path: Path, folder: Path) -> None:
    assert check_hf(folder, "vLLM", weights_needed=True).size == 1000
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RejectedError, match=r"has no config\.json"):
        check_hf(empty, "vLLM", weights_needed=True)
    (empty / "config.json").write_text("{")
    with pytest.raises(RejectedError, match="is not JSON"):
        check_hf(empty, "vLLM", weights_needed=True)
    (empty / "config.json").write_text("[]")
    with pytest.raises(RejectedError, match=r"has no file that ends in \.safetensors"):
        check_hf(empty, "vLLM", weights_needed=True)
    assert check_hf(empty, "vLLM", weights_needed=False).heads is None
    (empty / "model.safetensors").symlink_to("/no/such/blob")
    with pytest.raises(RejectedError, match="dangling link"):
        check_hf(empty, "vLLM", weights_needed=True)
    with pytest.raises(RejectedError, match="is a file; vLLM needs the folder"):
        check_hf(folder / "config.json", "vLLM", weights_needed=True)
    with pytest.raises(RejectedError, match="no such file or folder"):
        check_hf(tmp_path / "gone", "vLLM", weights_needed=True)


@pytest.mark.parametrize(
    ("engine", "arg", "flag"),
    [
        ("vllm", "--port=1", "--port"),
        ("vllm", "--po", "--port"),
        ("vllm", "--served_model_name", "--served-model-name"),
        ("vllm", "--tensor-parallel", "--tensor-parallel-size"),
        ("vllm", "-tp", "-tp"),
        ("vllm", "-tp=2", "-tp"),
        ("vllm", "-t", "-tp"),
        ("vllm", "-n2", "-n"),
        ("vllm", "--model.x=1", "--model"),
        ("vllm", "--headless", "--headless"),
        ("vllm", "--config", "--config"),
        ("sglang", "--tp", "--tp"),
        ("sglang", "--model-path", "--model-path"),
        ("sglang", "--dist-init", "--dist-init-addr"),
        ("sglang", "--nnodes=2", "--nnodes"),
        ("sglang", "--admin-api-key", "--admin-api-key"),
    ],
)
def test_reserved_flags_are_refused_in_every_spelling(engine: str, arg: str, flag: str) -> None:
    said = check_args(engine, [arg, "2"])
    assert said is not None
    assert said.startswith(f"args: {flag} is reserved for engine {engine}: ")


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("vllm", ["--max-model-len", "4096", "--enable-expert-parallel", "--config-format", "hf", "--model-impl", "auto"]),
        ("vllm", ["-q", "fp8", "-O3", "-dcp", "2", "--device", "cpu", "-1", "-", "--"]),
        ("vllm", ["--kv-transfer-config", '{"kv_role": "kv_both"}', "--override-generation-config.temperature", "0"]),
        ("sglang", ["--device", "cpu", "--mem-fraction-static", "0.8", "--dist-timeout", "9", "--tokenizer-path", "/t"]),
    ],
)
def test_other_flags_pass(engine: str, args: list[str]) -> None:
    assert check_args(engine, args) is None


@pytest.mark.parametrize(
    ("line", "says", "final"),
    [
        ("api_server.py: error: unrecognized arguments: --bogus", "(unrecognized arguments: --bogus)", True),
        ("  Value error, Model architectures ['FooForCausalLM'] are not supported for now.", "['FooForCausalLM']", True),
        (
            "the checkpoint has model type `foo` but Transformers does not recognize this architecture",
            "architecture (foo)",
            True,
        ),
        (
            "ValueError: (9 GiB KV cache is needed, which is larger than the available KV cache memory (1 GiB).",
            "too small",
            True,
        ),
        ("ValueError: No available memory for the cache blocks.", "no memory is left for the KV cache", True),
        ("  Value error, User-specified max_model_len (4096) is greater than the derived max_model_len", "4096 is more", True),
        ("RuntimeError: Cannot find any model weights with `/w`", "a file of the weights is missing (/w)", True),
        ("  Value error, --foo must be even", "vLLM refuses its settings: --foo must be even", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "GPU memory ran out", False),
        ("RuntimeError: NCCL error: unhandled system error", "could not talk to each other", False),
        ("The NVIDIA driver on your system is too old (found version 11040)", "too old for this build", True),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "behind an access agreement", True),
        ("OSError: [Errno 98] Address already in use", "the port was taken", False),
        ("MemoryError", "host memory ran out", False),
    ],
)
def test_the_cause_is_found_among_the_lines_that_follow_it(line: str, says: str, final: bool) -> None:
    log = ["INFO loading", line, "RuntimeError: Engine core initialization failed. See root cause above."]
    reason = classify(1, log, VLLM.patterns, was_ready=False)
    assert says in reason.text
    assert reason.final is final
    assert reason.port_taken is ("98" in line)


def test_values_of_flags_are_found_in_every_spelling() -> None:
    args = ["--a_b", "1", "--c=2", "--d", "--a-b=3"]
    assert [value_of(args, flag) for flag in ("--a-b", "--c", "--d", "--e")] == ["3", "2", "", None]
    assert [number_of(args, flag) for flag in ("--c", "--d", "--e")] == [2, None, None]


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        ('vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n', False),
        ('vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 2.0\n', True),
        ('vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_running{engine="1"} 1.0\n', True),
        ('vllm:num_requests_running_ever{engine="0"} 7.0\n# HELP vllm:num_requests_running 1\n', None),
        ("", None),
    ],
)
def test_metrics_tell_whether_requests_run(text: str, busy: bool | None) -> None:
    class Metrics(EngineClient):
        def __init__(self) -> None:
            self.url = ""

        async def get(self, path: str, timeout: float) -> Answer:
            assert path == "/metrics"
            return Answer(200, text.encode())

    assert asyncio.run(VLLM.busy(Metrics())) is busy


def test_answers_of_every_api_family_count_as_real() -> None:
    class Engine(EngineClient):
        def __init__(self) -> None:
            self.url = ""

        async def post(self, path: str, body: dict[str, Any], timeout: float) -> Answer:
            answers: dict[str, Any] = {
                "/v1/chat/completions": {"choices": [{}]},
                "/v1/responses": {"object": "response", "output": []},
                "/v1/messages": {"type": "error", "error": {}},
                "/v1/embeddings": {"error": {}},
            }
            return Answer(200, json.dumps(answers[path]).encode())

    offered = ["chat", "embeddings", "responses", "messages", "tokenize"]
    assert asyncio.run(probe(Engine(), "m", offered, sure=False)) == ["chat", "responses", "tokenize"]
