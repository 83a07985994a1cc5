"""Whether and how engines are told to publish their KV-cache events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgw_agent.engines.base import Launch
from llmgw_agent.engines.kv_event_flags import (
    KvSockets,
    Wanted,
    prepare_folder,
    prune_sockets,
    wants_kv_events,
    with_kv_events,
)
from llmgw_proto.engines import check_args
from llmgw_testing.agent_harness import fake_wish


@pytest.mark.parametrize(
    ("wanted", "engine", "policy", "role", "publishes"),
    [
        ("auto", "vllm", None, "head", False),
        ("auto", "vllm", "least_loaded", "head", False),
        ("auto", "vllm", "kv", "head", True),
        ("auto", "sglang", "kv_exact", "head", True),
        ("on", "vllm", None, "head", True),
        ("on", "vllm", None, "worker", False),
        ("on", "llamacpp", "kv", "head", False),
        ("off", "vllm", "kv", "head", False),
    ],
)
def test_who_publishes(wanted: Wanted, engine: str, policy: str | None, role: str, publishes: bool) -> None:
    assert wants_kv_events(wanted, fake_wish(engine=engine, policy=policy, role=role)) is publishes


def test_the_engine_is_told_where_and_the_agents_next_life_knows_it_too() -> None:
    wish = fake_wish(engine="vllm")
    sockets = KvSockets.of(Path("/var/lib/llmgw/agent/kv"), "0123456789abcdef", wish)
    assert sockets == KvSockets.of(Path("/var/lib/llmgw/agent/kv"), "0123456789abcdef", wish)
    assert sockets != KvSockets.of(Path("/var/lib/llmgw/agent/kv"), "fedcba9876543210", wish)
    launch = with_kv_events(Launch(["vllm", "serve"], {"A": "b"}), sockets)
    assert launch.environment == {"A": "b"}
    assert launch.argv[:3] == ["vllm", "serve", "--kv-events-config"]
    config = json.loads(launch.argv[3])
    assert config["enable_kv_cache_events"] is True
    assert config["publisher"] == "zmq"
    assert config["endpoint"].startswith("ipc:///var/lib/llmgw/agent/kv/")
    assert config["replay_endpoint"] != config["endpoint"]
    assert config["topic"] == "kv@m-1.0@m"
    for name in ("x" * 120, "ü" * 60):
        long = KvSockets.of(Path("/") / name, "0123456789abcdef", wish)
        assert long.publish.startswith("ipc://@"), "too long for a socket's address"
    assert len(long.publish) < 100


def test_sockets_of_killed_engines_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    prune_sockets(folder, [])
    left = []
    for shard in ("m-1.0", "n-1.0"):
        prepare_folder(folder, shard)
        path = Path(KvSockets.of(folder, "a" * 16, fake_wish(shard=shard)).publish.removeprefix("ipc://"))
        path.touch()
        left.append(path)
    assert folder.stat().st_mode & 0o077 == 0
    prepare_folder(folder, "m-1.0")
    assert [path.exists() for path in left] == [False, True]
    left[0].touch()
    prune_sockets(folder, ["m-1.0"])
    assert [path.exists() for path in left] == [True, False]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("flag", ["--kv-events-config", "--kv_events_config={}", "--kv-events-c"])
def test_users_do_not_say_where_events_go(engine: str, flag: str) -> None:
    assert "the agent chooses where KV-cache events go" in (check_args(engine, [flag, "{}"]) or "")
