"""The agent's configuration and command line: one clear line for each mistake, never a traceback."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw_agent.__main__ import main
from llmgw_agent.config import AgentConfig
from llmgw_agent.lock import NameLock, StateLock
from llmgw_agent.process.ports import ephemeral_range, overlaps
from llmgw_base.config import ConfigError, load


def test_defaults_are_usable() -> None:
    config = load(AgentConfig, None)
    assert config.node.name == socket.gethostname()
    assert config.state_dir == Path("/var/lib/llmgw/agent")
    assert config.engines.on_stop == "keep"
    assert config.engine_host == "127.0.0.1"
    assert not overlaps((config.engines.ports.first, config.engines.ports.last), ephemeral_range())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("node.name=a b", "node.name: 'a b' is not a node name"),
        ("node.nme=x", "node.nme: unknown key; did you mean name?"),
        ("node.reserved_memory=lots", "node.reserved_memory: 'lots' is not a size"),
        ("engines.ports={first: 30000, last: 20000}", "engines.ports: last (20000) is below first (30000)"),
        ("engines.on_stop=maybe", "engines.on_stop: Input should be 'keep' or 'stop'"),
        ("restart={first_delay: 9, longest_delay: 3}", "restart: longest_delay (3.0) is below first_delay (9.0)"),
        ("listen=nowhere", "listen: 'nowhere' is not an address"),
        ("listen=0.0.0.0:7090", "would serve plaintext to other machines; set tls:"),
        ("node.address=192.0.2.1", "engines.listen: 192.0.2.1:0 would serve plaintext to other machines"),
        ("lease_ttl=0", "lease_ttl: Input should be greater than or equal to 2"),
        ("etcd.endpoints=[nonsense]", "etcd.endpoints.0: 'nonsense' is not an etcd endpoint"),
    ],
)
def test_a_mistake_is_named(setting: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check-config", "--set", setting]) == 2
    error = capsys.readouterr().err
    assert error.startswith("llmgw-agent: ")
    assert says in error
    assert "Traceback" not in error


def test_a_plain_address_needs_insecure_to_be_said() -> None:
    config = load(AgentConfig, None, ["node.address=192.0.2.1", "listen=0.0.0.0:0", "insecure=true"])
    assert config.engine_host == "192.0.2.1"


def test_check_config_and_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "agent.yaml"
    good.write_text("node:\n  name: n1\n")
    assert main(["--check-config", "--config", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: fine\n"
    assert main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: no such file; give another with --config" in capsys.readouterr().err


def test_the_program_says_what_keeps_it_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        blocked = tmp_path / "file"
        blocked.write_text("")
        cases = {
            f"listen=127.0.0.1:{port}": f"listen: cannot listen on 127.0.0.1:{port}: ",
            f"state_dir={blocked}/state": f"state_dir: {blocked}/state cannot be used: Not a directory; create it",
        }
        for setting, says in cases.items():
            state = [] if setting.startswith("state_dir") else ["--set", f"state_dir={tmp_path}/state"]
            argv = [sys.executable, "-m", "llmgw_agent", "--set", setting, *state]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2, done.stderr
            last = done.stderr.strip().splitlines()[-1]
            assert last.startswith("llmgw-agent: ")
            assert says in last
            assert "Traceback" not in done.stderr


def test_one_agent_per_state_folder(tmp_path: Path) -> None:
    lock = StateLock(tmp_path / "state")
    with pytest.raises(ConfigError, match=rf"in use by another agent \(pid {os.getpid()}\); stop it"):
        StateLock(tmp_path / "state")
    lock.release()
    StateLock(tmp_path / "state").release()
    descriptor = os.open(tmp_path / "state/lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_one_agent_per_name_of_a_cluster_on_a_host() -> None:
    with NameLock("c1", "n1"):
        with (
            pytest.raises(ConfigError, match="another agent on this host is already named 'n1'; stop it"),
            NameLock("c1", "n1"),
        ):
            pass
        with NameLock("c2", "n1"), NameLock("c1", "n2"):
            pass
    with NameLock("c1", "n1"):
        pass


def test_detect_is_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "-o", "json"]) == 0
    assert '"gpus"' in capsys.readouterr().out
