"""``llmgwctl replica show``, ``drain``, ``undrain``, ``restart`` and ``node top`` against a fake coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from llmgw_ctl import replica_actions
from llmgw_ctl.app import build
from llmgw_ctl.errors import CtlError
from llmgw_testing.fake_admin import TOKEN, FakeAdmin, Step

BASE: dict[str, Any] = {
    "state": "Ready",
    "attempt": "a1",
    "argv": ["llama-server", "--alias", "a b", "--api-key", "***"],
    "environment": ["CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"],
    "ports": {"http": 20000},
    "processes": [{"pid": 4711, "parent": 1, "name": "llama-server", "rss_bytes": 3 << 30}],
    "connections": 1,
    "requests": 2,
    "failures": 3,
    "history": [
        {"at": 1_700_000_000.0, "state": "Starting", "reason": ""},
        {"at": 1_700_000_009.0, "state": "Ready", "reason": ""},
    ],
    "logs": [{"name": "engine.log", "bytes": 2048, "modified_at": 1_700_000_009.0}],
    "measured": {
        "install": 0.2,
        "fetch": None,
        "start_to_listen": 3.0,
        "listen_to_ready": 61.0,
        "peak_rss_bytes": 4 << 30,
        "peak_gpu_bytes": {"GPU-1": 70 << 30},
        "tokens_per_second": 123.5,
    },
    "kv_events": True,
}


class Ctl:
    def __init__(self, admin: FakeAdmin, home: Path) -> None:
        self.admin, self.home = admin, home
        self._app = build()

    def __call__(self, *args: str, expect: int = 0) -> tuple[str, str]:
        """Returns stdout and stderr."""
        env = {"LLMGW_SERVER": self.admin.url, "LLMGW_TOKEN": TOKEN, "HOME": str(self.home), "XDG_CONFIG_HOME": None}
        result = CliRunner().invoke(self._app, args, env=env, prog_name="llmgwctl")
        status, stderr = result.exit_code, result.stderr
        if isinstance(result.exception, CtlError):
            status, stderr = result.exception.exit_code, f"{result.exception.message}\n{result.exception.remedy}"
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert status == expect, f"{args} ended with {status}:\n{result.stdout}\n{stderr}"
        return result.stdout, stderr


@pytest.fixture
def ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctl]:
    monkeypatch.setattr(replica_actions, "LOOK_SECONDS", 0.01)
    with FakeAdmin() as admin:
        admin.add("m")
        yield Ctl(admin, tmp_path)


def test_show_tells_what_the_agent_knows(ctl: Ctl) -> None:
    ctl.admin.details = [BASE]
    out, _ = ctl("replica", "show", "m-00000")
    for words in (
        "llama-server --alias 'a b' --api-key '***'",
        "CUDA_VISIBLE_DEVICES, HF_HUB_OFFLINE",
        "2 running or waiting, 1 connection open",
        "3 in a row",
        "1m4s: engine 0.2s, start 3.0s, load 1m1s",
        "4.0 GiB of the host's, 70.0 GiB of GPU-1's",
        "up to 123.5 tokens/s",
        "engine.log (2.0 KiB",
        "Starting",
        "3.0 GiB  llama-server",
    ):
        assert words in out, out
    shown = json.loads(ctl("replica", "show", "m-00000", "-o", "json")[0])
    assert shown["id"] == "m-00000"
    assert shown["details"]["measured"]["tokens_per_second"] == 123.5


def test_show_without_the_agent_shows_what_the_coordinator_knows(ctl: Ctl) -> None:
    out, err = ctl("replica", "show", "m-00000")
    assert "pid 4711, port 20000" in out
    assert "its agent tells nothing more: the agent of node n1 cannot be asked" in err
    assert json.loads(ctl("replica", "show", "m-00000", "-o", "json")[0])["details"] == {}


def test_drain_waits_until_no_request_runs(ctl: Ctl) -> None:
    ctl.admin.details = [BASE, {**BASE, "requests": 1}, {**BASE, "requests": 0}]
    out, _ = ctl("replica", "drain", "m-00000")
    assert "m-00000 is out of routing; no request runs" in out
    assert "llmgwctl replica undrain m-00000" in out
    ctl.admin.details = [BASE]
    assert "requests that still run: 2" in ctl("replica", "drain", "m-00000", "--no-wait")[0]
    _, err = ctl("replica", "drain", "m-00000", "--timeout", "0.1s", expect=5)
    assert "requests still run after 0.1s" in err
    ctl.admin.details = [{**BASE, "requests": None, "connections": 0}]
    found = json.loads(ctl("replica", "drain", "m-00000", "-o", "json")[0])
    assert (found["drained"], found["connections"]) == (True, 0)
    assert "takes requests again" in ctl("replica", "undrain", "m-00000")[0]
    assert ctl.admin.requests[-1] == ("POST", "/admin/v1/replicas/m-00000/undrain")
    ctl("replica", "undrain", "nobody", expect=4)


def test_a_drained_replica_is_told_from_one_that_ends(ctl: Ctl) -> None:
    ctl.admin.add("d", Step("Degraded", ready=0))
    ctl.admin.drained.add("d-00000")
    line = next(line for line in ctl("replica", "list")[0].splitlines() if line.startswith("d-00000"))
    assert "Drained" in line


def test_restart_waits_for_the_next_engine_to_be_ready(ctl: Ctl) -> None:
    ctl.admin.details = [
        BASE,
        {**BASE, "state": "Draining"},
        {**BASE, "state": "Starting", "attempt": "a2"},
        {**BASE, "attempt": "a2"},
    ]
    assert "m-00000 is Ready again" in ctl("replica", "restart", "m-00000", "--drain", "1m")[0]
    assert ctl.admin.bodies[-1] == {"drain_seconds": 60.0}
    ctl.admin.details = [BASE, {**BASE, "attempt": "a2", "drained": True}]
    out = ctl("replica", "restart", "m-00000")[0]
    assert "m-00000 is Ready again, and still out of routing" in out
    assert "llmgwctl replica undrain m-00000" in out
    assert "is restarting" in ctl("replica", "restart", "m-00000", "--no-wait")[0]
    assert ctl.admin.bodies[-1] == {"drain_seconds": None}
    ctl.admin.details = [{**BASE, "attempt": "a2", "state": "Rejected", "reason": "it is too large"}]
    assert "m-00000 is Rejected: it is too large" in ctl("replica", "restart", "m-00000", expect=5)[1]
    ctl.admin.details = [{**BASE, "attempt": "a2", "state": "Probing"}]
    _, err = ctl("replica", "restart", "m-00000", "--timeout", "0.1s", expect=5)
    assert "not Ready again after 0.1s; it is Probing" in err


def test_top_prints_tables_or_one_object_a_line(ctl: Ctl) -> None:
    gpu = {"uuid": "GPU-1", "utilization": 87, "memory_used_bytes": 70 << 30, "memory_total_bytes": 80 << 30, "power": 612.4}
    shard = {
        "shard": "m-00000.0",
        "model": "m",
        "state": "Ready",
        "requests": 7,
        "tokens_per_second": 1234.5,
        "rss_bytes": 1 << 30,
    }
    ctl.admin.figures = {
        "node": "n1",
        "load1": 1.5,
        "memory_available_bytes": 8 << 30,
        "gpus": [gpu],
        "shards": [{**shard, "gpu_bytes": {"GPU-1": 69 << 30}}, {"shard": "d-1.0", "state": "Ready", "drained": True}],
    }
    out, _ = ctl("node", "top", "n1", "--count", "2", "--every", "0.5s")
    assert out.count("n1: load 1.50, 8.0 GiB of memory available") == 2
    for words in ("87 %", "70.0 GiB / 80.0 GiB", "612 / -", "1234.5", "69.0 GiB", "Drained"):
        assert words in out
    assert ctl.admin.requests[-1] == ("GET", "/admin/v1/nodes/n1/telemetry?every=0.5&count=2")
    lines = ctl("node", "top", "n1", "--count", "3", "-o", "json")[0].splitlines()
    assert [json.loads(line)["at"] for line in lines] == [0, 1, 2]
    assert len(list(yaml.safe_load_all(ctl("node", "top", "n1", "--count", "2", "-o", "yaml")[0]))) == 2
    assert "not between" in ctl("node", "top", "n1", "--every", "0.1s", expect=2)[1]
