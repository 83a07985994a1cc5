"""What goes wrong by a slip is one clear error: the thing, the cause, the remedy; never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_testing.stack import Daemon, Stack, chat, fake_model, free_port, request
from llmgw_testing.wait import wait_until

PROGRAMS = ("llmgw_agent", "llmgw_coordinator", "llmgw_router")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One healthy stack that serves ``m``; no test here may harm it."""
    with Stack(tmp_path_factory.mktemp("bad-input")) as running:
        running.coordinator()
        running.agent()
        router = running.router()
        running.apply(fake_model("m"))
        running.ready("m", 1)
        yield running
        assert chat(router.url, "m")[0] == 200
        running.ready("m", 1)


@pytest.fixture
def router(stack: Stack) -> Daemon:
    return stack.daemons["r1"]


def run(module: str, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", module, *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)


def assert_clear(done: subprocess.CompletedProcess[str], status: int, *parts: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "Traceback" not in said
    for part in parts:
        assert part in said, said


def assert_openai_error(answer: tuple[int, bytes], status: int, *parts: str) -> None:
    assert answer[0] == status, answer
    error = json.loads(answer[1])["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    for part in parts:
        assert part in error["message"], error


# --- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", PROGRAMS)
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("log: {level: loud}\n", ("config.yaml", "log.level", "debug")),
        ("log: {levle: info}\n", ("config.yaml", "log.levle", "did you mean level?")),
        ("log: [\n", ("config.yaml", "YAML", "line")),
        ("etcd: {endpoints: [localhost]}\n", ("config.yaml", "etcd.endpoints.0", "http://host:2379")),
    ],
    ids=["wrong-value", "wrong-key", "not-yaml", "wrong-endpoint"],
)
def test_wrong_config(module: str, text: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert_clear(run(module, "--config", str(path)), 2, *parts)


@pytest.mark.parametrize("module", PROGRAMS)
def test_missing_config_file(module: str, tmp_path: Path) -> None:
    assert_clear(run(module, "--config", str(tmp_path / "absent.yaml")), 2, "absent.yaml", "no such file", "--config")


@pytest.mark.parametrize("name", ["c1", "r1", "n1"])
def test_a_port_in_use(stack: Stack, name: str, tmp_path: Path) -> None:
    daemon = stack.daemons[name]
    module = daemon.argv[2]
    taken = daemon.url.rpartition(":")[2]
    if name == "n1":
        taken = stack.admin("/admin/v1/nodes/n1")["grpc_address"].rpartition(":")[2]
    settings = ["--set", f"listen=127.0.0.1:{taken}", "--set", f"state_dir={tmp_path / 'state'}"]
    if name == "c1":
        settings += ["--set", f"token_file={tmp_path / 'token'}", "--set", "id=other"]
    assert_clear(run(module, *daemon.argv[3:], *settings), 2, f"127.0.0.1:{taken}", "pid", "choose another")


# --- the store ---------------------------------------------------------------------------------------------------------


def test_ctl_says_which_coordinator_does_not_answer(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "token").write_text("t")
    done = run("llmgw_ctl", "--server", f"http://127.0.0.1:{port}", "--token-file", str(tmp_path / "token"), "status")
    assert_clear(done, 3, f"127.0.0.1:{port}", "--server")


def without_etcd(tmp_path: Path) -> tuple[str, list[str]]:
    etcd = f"http://127.0.0.1:{free_port()}"
    settings = {"etcd.endpoints": f"[{etcd}]", "listen": "127.0.0.1:0", "state_dir": tmp_path / "state", "insecure": "true"}
    return etcd, [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def test_a_coordinator_without_etcd_ends_at_once(tmp_path: Path) -> None:
    etcd, settings = without_etcd(tmp_path)
    done = run("llmgw_coordinator", *settings, "--set", f"token_file={tmp_path / 'token'}")
    assert_clear(done, 3, etcd, "refused", "check that etcd runs and that etcd.endpoints names it")


@pytest.mark.parametrize("module", ["llmgw_agent", "llmgw_router"])
def test_an_agent_or_router_without_etcd_says_so_and_waits(module: str, tmp_path: Path) -> None:
    """Both must come up in whatever order machines boot."""
    etcd, settings = without_etcd(tmp_path)
    daemon = Daemon("d", [sys.executable, "-m", module, *settings], tmp_path / "log", dict(os.environ)).start()
    try:
        wait_until(lambda: etcd in daemon.log(), within=30, what="the log to name the etcd that does not answer")
        assert daemon.running
    finally:
        status = daemon.stop()
    assert status == 0
    assert "Traceback" not in daemon.log()


# --- models ------------------------------------------------------------------------------------------------------------


def llamacpp(name: str, source: str, **profile: Any) -> dict[str, Any]:
    return {"name": name, "source": source, "profiles": [{"engine": "llamacpp", **profile}], "drain_seconds": 1}


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ({"name": "x", "profiles": []}, ("profiles", "at least 1")),
        ({"name": "x", "profiles": [{"engine": "vlm"}]}, ("profiles", "engine", "llamacpp")),
        (llamacpp("x", "/w.gguf", gpu=1), ("profiles.0.gpu",)),
        (llamacpp("x", "/w.gguf", args=["--port", "1"]), ("--port",)),
        (llamacpp("x", "/w.gguf", memory="many"), ("many", "512MiB")),
    ],
    ids=["no-profile", "unknown-engine", "unknown-field", "reserved-flag", "wrong-size"],
)
def test_a_wrong_spec_is_refused(stack: Stack, spec: dict[str, Any], parts: tuple[str, ...]) -> None:
    done = stack.apply(spec, expect=None)
    assert done.returncode not in (0, 5), done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert [each["name"] for each in stack.admin("/admin/v1/models")["models"]] == ["m"]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (llamacpp("absent", "/no/such/weights.gguf"), ("/no/such/weights.gguf", "n1")),
        (llamacpp("text", __file__), (__file__, "GGUF")),
        (llamacpp("huge", "/no/such/weights.gguf", memory="900TiB"), ("900 TiB", "n1")),
        (llamacpp("gpus", "/no/such/weights.gguf", gpus=64), ("64", "GPU")),
    ],
    ids=["missing-weights", "not-weights", "too-much-memory", "too-many-gpus"],
)
def test_a_model_that_cannot_run_says_why(stack: Stack, spec: dict[str, Any], parts: tuple[str, ...]) -> None:
    try:
        done = stack.apply(spec, "--timeout", "40", expect=5)
        for part in parts:
            assert part in done.stderr + done.stdout, done.stderr
    finally:
        stack.ctl("model", "remove", spec["name"])


def test_unknown_things_are_named(stack: Stack) -> None:
    for args in (
        ("model", "show", "nope"),
        ("replica", "show", "nope"),
        ("node", "show", "nope"),
        ("model", "scale", "nope", "1"),
    ):
        done = stack.ctl(*args, expect=4)
        assert "nope" in done.stderr


# --- requests ----------------------------------------------------------------------------------------------------------


def test_unknown_model(router: Daemon) -> None:
    assert_openai_error(chat(router.url, "nope"), 404, "nope")


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"x"', b'{"model": 1}', b'{"messages": []}', b"\xff\xfe", b"[" * 100_000])
def test_bad_json(router: Daemon, body: bytes) -> None:
    asked = urllib.request.Request(f"{router.url}/v1/chat/completions", body, {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=30)
    with caught.value as error:
        assert_openai_error((error.code, error.read()), 400)


def test_unknown_path(router: Daemon) -> None:
    assert_openai_error(request(f"{router.url}/v1/nope"), 404)
