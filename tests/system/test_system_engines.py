"""A node without any llama.cpp: from `llmgwctl model apply` to an answer, through the real package and a whole stack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmgw_testing.llama_release import make_archive, server
from llmgw_testing.llama_server import weights
from llmgw_testing.real_wheel import pack
from llmgw_testing.stack import Stack
from llmgw_testing.wait import wait_until

#: Hides the package that the tests' own Python has. In an engine's environment nobody sees this: it starts without PYTHONPATH.
_HIDE = "import sys\nsys.modules['xllamacpp'] = None\n"


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(_HIDE)
    stack = Stack(tmp_path / "stack")
    stack.environment["PYTHONPATH"] = str(hidden)
    stack.environment["PATH"] = "/usr/bin:/bin"
    return stack


def model(name: str, **profile: object) -> dict[str, object]:
    args = ["--ctx-size", "1024", "--threads", "1"]
    return {
        "name": name,
        "source": str(weights()),
        "profiles": [{"engine": "llamacpp", "args": args, **profile}],
        "drain_seconds": 1,
    }


def offered(stack: Stack) -> list[str]:
    """Versions of llama.cpp that models may be placed for."""
    engines = stack.admin("/admin/v1/nodes/n1")["inventory"]["engines"]
    return [each["version"] for each in engines if each["name"] == "llamacpp"]


def test_a_missing_engine_is_installed_while_the_operator_watches(stack: Stack, tmp_path: Path) -> None:
    version, wheel = pack("xllamacpp", tmp_path / "wheels")
    with stack:
        stack.coordinator()
        stack.agent("n1", node={"labels": {"ring": "canary"}})
        router = stack.router()
        wait_until(lambda: stack.admin("/admin/v1/status")["nodes"]["alive"] == 1, within=60, what="the node to be alive")
        assert offered(stack) == []
        stack.apply(model("early"), "--no-wait")
        wait_until(lambda: "llamacpp" in stack.admin("/admin/v1/models/early")["reason"], within=60, what="the reason")
        stack.ctl("model", "remove", "early")

        where = ("--find-links", str(wheel.parent))
        stack.ctl("engine", "set", "llamacpp", "--version", "9.9.9")
        stack.ctl("engine", "set", "llamacpp", "--version", version, "--label", "ring=canary", *where)
        settings = stack.ctl("engine", "settings").stdout
        assert re.search(rf"llamacpp +ring=canary +{re.escape(version)} ", settings), settings
        assert re.search(r"llamacpp +all others +9\.9\.9 ", settings), settings

        wait_until(lambda: offered(stack) == [version], within=60, what="the node to offer the version for its label")
        done = stack.apply(model("org/smol"))
        said = done.stdout + done.stderr
        assert f"installing engine llamacpp {version}" in said, said
        assert "%" in said
        client = stack.client(router)
        answer = client.chat.completions.create(
            model="org/smol", messages=[{"role": "user", "content": "Say hello."}], max_tokens=4
        )
        assert answer.choices[0].message.content is not None
        (replica,) = stack.ready("org/smol", 1)
        assert replica["engine_version"] == version

        listed = stack.ctl("engine", "list", "--node", "n1").stdout
        assert re.search(rf"n1 +llamacpp +{re.escape(version)} +installed +by fleet", listed), listed
        assert replica["id"] in listed
        kept = stack.ctl("engine", "remove", "llamacpp", "--node", "n1", "--version", version, expect=1)
        assert f"is used by {replica['id']}.0" in " ".join(kept.stderr.split())
        again = stack.ctl("engine", "reinstall", "llamacpp", "--node", "n1")
        assert "installing llamacpp on n1, 85%, testing" in again.stderr
        assert f"llamacpp {version} is installed on n1" in again.stdout
        assert stack.replicas("org/smol")[0]["pid"] == replica["pid"], "what runs goes on"
        stack.ctl("model", "remove", "org/smol")
        removed = stack.ctl("engine", "remove", "llamacpp", "--node", "n1")
        assert f"llamacpp {version} removed from n1" in removed.stdout
        states = {(each["version"], each["state"]) for each in stack.ask_ctl("engine", "list")["nodes"][0]["engines"]}
        assert states == {(version, "wanted")}
        stack.ctl("engine", "unset", "llamacpp", "--label", "ring=canary")
        stack.ctl("engine", "unset", "llamacpp")
        assert stack.ask_ctl("engine", "settings") == []


def test_a_lock_from_the_fleet_counts_and_a_wrong_one_is_told(stack: Stack, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle" / "llama.tar.gz"
    sha256 = make_archive(bundle, {"llama-b7/llama-server": server("7")})
    lock = tmp_path / "lock.txt"
    with stack:
        stack.coordinator()
        stack.agent("n1")
        wait_until(lambda: stack.admin("/admin/v1/status")["nodes"]["alive"] == 1, within=60, what="the node to be alive")
        lock.write_text("xllamacpp==1.0\n")
        bad = stack.ctl("engine", "set", "llamacpp", "--version", "1.0", "--lock", str(lock), expect=2)
        assert "has no hash for 'xllamacpp==1.0'" in " ".join(bad.stderr.split())
        lock.write_text(f"xllamacpp==1.0 --hash=sha256:{'0' * 64}\n")
        empty = str(tmp_path / "bundle")
        stack.ctl("engine", "set", "llamacpp", "--version", "1.0", "--lock", str(lock), "--find-links", empty)
        failed = stack.ctl("engine", "install", "llamacpp", "--node", "n1", expect=None)
        assert failed.returncode in (1, 3)
        assert "engine llamacpp 1.0 cannot be installed" in " ".join(failed.stderr.split())
        kept = list((stack.root / "agent-n1" / "engines" / "llamacpp" / "locks").iterdir())
        assert [each.read_text() for each in kept] == [lock.read_text()], "the lock came with the settings"

        stack.ctl("engine", "set", "llamacpp", "--version", "b7", "--archive", str(bundle), "--sha256", sha256)
        done = stack.ctl("engine", "install", "llamacpp", "--node", "n1")
        assert "llamacpp b7 is installed on n1 (CUDA0)" in done.stdout
        (found,) = [each for each in stack.ask_ctl("engine", "list")["nodes"][0]["engines"] if each["state"] == "installed"]
        assert (found["version"], found["default"], found["origin"]) == ("b7", True, "fleet")
        assert found["lock_sha256"]
        unknown = stack.ctl("engine", "install", "whisper", "--node", "n1", expect=4)
        assert "agents install vllm, sglang, llamacpp" in " ".join(unknown.stderr.split())
