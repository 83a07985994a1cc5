"""The program as an operator meets it: options, refusals, exit statuses."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from llmgw_base.config import ConfigError
from llmgw_base.lifecycle import Stop
from llmgw_base.notify import Notifier
from llmgw_coordinator.__main__ import main
from llmgw_coordinator.app import App
from llmgw_coordinator.config import CoordinatorConfig
from llmgw_proto import SCHEMA_VERSION, __version__, keyspace
from llmgw_proto.records import ClusterRecord
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.stack import Stack
from llmgw_testing.wait import wait_until


def run(tmp_path: Path, *settings: str, options: tuple[str, ...] = (), limit: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end."""
    argv = [sys.executable, "-m", "llmgw_coordinator", *options]
    for each in (f"state_dir={tmp_path}", "listen=127.0.0.1:0", *settings):
        argv += ["--set", each]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_a_good_configuration_is_said_to_be_good(tmp_path: Path) -> None:
    good = run(tmp_path, options=("--check-config",))
    assert (good.returncode, good.stdout.strip()) == (0, "llmgw-coordinator: the configuration is good")
    assert list(tmp_path.iterdir()) == [], "checking makes nothing"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out.strip()) == (0, f"llmgw-coordinator {__version__}")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("listne=1", "listne: unknown key; did you mean listen?"),
        ("placement.brake=1", "placement.brake: unknown key"),
        ("leader_ttl=0", "leader_ttl"),
        ("listen=nowhere", "'nowhere' is not an address"),
        (
            "listen=0.0.0.0:7080",
            "would serve plaintext to other machines; set tls:, listen on 127.0.0.1, or say insecure: true",
        ),
        ("advertise=host:7080", "is not a URL"),
        ("etcd.endpoints=[nonsense]", "is not an etcd endpoint"),
        ("placement.reserved_memory=much", "is not a size"),
        ("tls={ca: /no, cert: /no, key: /no}", "/no"),
    ],
)
def test_a_bad_configuration_is_one_clear_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, told: str
) -> None:
    status = main(["--check-config", "--set", f"state_dir={tmp_path}", "--set", setting])
    said = capsys.readouterr().err
    assert status == 2
    assert told in said
    assert said.startswith("llmgw-coordinator: ")
    assert "Traceback" not in said


def start(**settings: object) -> None:
    """Runs the program's body, for what goes wrong before it serves."""
    asyncio.run(App(CoordinatorConfig.model_validate(settings)).run(Stop(), Notifier({})))


def test_a_port_that_is_taken_names_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}.*pid {os.getpid()}"):
            start(state_dir=tmp_path, listen=f"127.0.0.1:{port}")


def test_a_token_that_others_can_read_keeps_the_program_from_starting(tmp_path: Path) -> None:
    (tmp_path / "admin.token").write_text("x" * 40)
    (tmp_path / "admin.token").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        start(state_dir=tmp_path, listen="127.0.0.1:0")


def test_an_etcd_that_cannot_be_reached_is_one_line_and_status_3(tmp_path: Path) -> None:
    done = run(tmp_path, "etcd.endpoints=[http://127.0.0.1:1]")
    assert done.returncode == 3
    assert "127.0.0.1:1" in done.stderr
    assert "check that etcd runs" in done.stderr


def test_a_cluster_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with EtcdServer() as etcd:
        newer = ClusterRecord(id="i", name="future", created_at=0.0, schema_version=SCHEMA_VERSION + 1, engine_secret="ab" * 32)
        etcd.ctl("put", keyspace.CLUSTER, newer.encode().decode())
        done = run(tmp_path, f"etcd.endpoints=[{etcd.endpoint}]")
        assert done.returncode == 3
        assert f"schema version {SCHEMA_VERSION + 1}" in done.stderr
        assert "upgrade this coordinator" in done.stderr
        assert etcd.ctl("get", "--prefix", "--keys-only", "/llmgw/").split() == [keyspace.CLUSTER]


def test_with_tls_the_api_is_https(tmp_path: Path) -> None:
    section = TestAuthority(tmp_path).issue("c1")
    files = {"ca": str(section.ca), "cert": str(section.cert), "key": str(section.key)}
    with Stack(tmp_path / "stack") as stack:
        daemon = stack._start(
            "llmgw_coordinator",
            "c1",
            {
                "id": "c1",
                "listen": "127.0.0.1:0",
                "token_file": str(stack.token_file),
                "etcd": {"endpoints": [stack.etcd.endpoint]},
                "tls": files,
            },
            "",
        )
        record = wait_until(
            lambda: stack.etcd.ctl("get", "--print-value-only", keyspace.coordinator("c1")), within=60, what="it to register"
        )
        address = json.loads(record)["address"]
        assert address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=section.ca)
        with urllib.request.urlopen(address + "/readyz", context=context, timeout=20) as answer:
            assert json.load(answer)["ready"] is True
        assert daemon.stop() == 0
        assert stack.etcd.ctl("get", "--prefix", "--keys-only", keyspace.COORDINATORS) == ""
