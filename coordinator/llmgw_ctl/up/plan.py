"""Which programs run, with which arguments and configuration, and in which order they start and stop. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw_base.net import Listen
from llmgw_ctl.up.layout import Layout

ETCD, COORDINATOR, ROUTER, AGENT = "etcd", "coordinator", "router", "agent"

#: Each stage starts when the one before is ready; within a stage all start at once.
START_STAGES: tuple[tuple[str, ...], ...] = ((ETCD,), (COORDINATOR, ROUTER, AGENT))

#: The agent goes first, with its engines, while there is still a store to say so in; the store goes last.
STOP_ORDER: tuple[str, ...] = (AGENT, ROUTER, COORDINATOR, ETCD)

#: Seconds between SIGTERM and SIGKILL. The agent's is longer than what it gives its engines.
GRACE = {AGENT: 20.0, ROUTER: 8.0, COORDINATOR: 8.0, ETCD: 8.0}
ENGINE_STOP_SECONDS = 5.0
LEADER_TTL = 5
NODE_TTL = 10

#: etcd of every version wants host:port after unix://, and makes that the file's name.
CLIENT_SOCKET = "client.sock:0"
PEER_SOCKET = "peer.sock:0"


@dataclass(frozen=True, slots=True)
class Choices:
    """What was found or chosen before anything starts."""

    etcd: Path
    python: str
    node: str
    router: Listen
    admin: Listen
    agent: Listen
    coordinator_id: str = "up"


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One child: ``config`` is written as YAML before it starts (None: it needs no file)."""

    name: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    pid_file: Path
    grace: float
    config_path: Path | None = None
    config: dict[str, Any] | None = None


def etcd_endpoint(layout: Layout) -> str:
    return f"unix://{layout.sockets / CLIENT_SOCKET}"


def plan(layout: Layout, choices: Choices) -> dict[str, ChildPlan]:
    """All children by name."""
    configs = {
        COORDINATOR: coordinator_config(layout, choices),
        ROUTER: router_config(layout, choices),
        AGENT: agent_config(layout, choices),
    }
    children = {ETCD: ChildPlan(ETCD, etcd_argv(layout, choices), layout.sockets, **_common(layout, ETCD))}
    for name, config in configs.items():
        argv = (choices.python, "-P", "-m", f"llmgw_{name}", "--config", str(layout.config(name)))
        children[name] = ChildPlan(
            name, argv, layout.root, config_path=layout.config(name), config=config, **_common(layout, name)
        )
    return children


def _common(layout: Layout, name: str) -> dict[str, Any]:
    return {"log": layout.log(name), "pid_file": layout.pid_file(name), "grace": GRACE[name]}


def etcd_argv(layout: Layout, choices: Choices) -> tuple[str, ...]:
    """A single member on unix sockets only, relative to its working folder; nobody uses the URLs that it advertises."""
    options = {
        "--name": "up",
        "--data-dir": str(layout.etcd),
        "--listen-client-urls": f"unix://{CLIENT_SOCKET}",
        "--advertise-client-urls": "http://127.0.0.1:2379",
        "--listen-peer-urls": f"unix://{PEER_SOCKET}",
        "--initial-advertise-peer-urls": "http://127.0.0.1:2380",
        "--initial-cluster": "up=http://127.0.0.1:2380",
        # A single member has nobody to hear from: with the usual timeout it waits a second before it elects itself.
        "--heartbeat-interval": "40",
        "--election-timeout": "200",
        "--auto-compaction-mode": "periodic",
        "--auto-compaction-retention": "10m",
        "--logger": "zap",
        "--log-level": "warn",
    }
    return (str(choices.etcd), *(f"{key}={value}" for key, value in options.items()))


def _etcd_section(layout: Layout) -> dict[str, Any]:
    return {"endpoints": [etcd_endpoint(layout)], "trial": True}


def coordinator_config(layout: Layout, choices: Choices) -> dict[str, Any]:
    return {
        "id": choices.coordinator_id,
        "cluster_name": "up",
        "state_dir": str(layout.coordinator),
        "listen": str(choices.admin),
        "token_file": str(layout.token),
        "etcd": _etcd_section(layout),
        # Nobody stands by; after a kill the next start need not wait long for the old leader's lease to end.
        "leader_ttl": LEADER_TTL,
        "insecure": True,
        "log": {"format": "text"},
    }


def router_config(layout: Layout, choices: Choices) -> dict[str, Any]:
    return {
        "listen": str(choices.router),
        "state_dir": str(layout.router),
        "etcd": _etcd_section(layout),
        "drain": {"lame_duck_seconds": 0, "seconds": 3},
        "insecure": True,
        "log": {"format": "text"},
    }


def agent_config(layout: Layout, choices: Choices) -> dict[str, Any]:
    return {
        "node": {"name": choices.node},
        "listen": str(choices.agent),
        "state_dir": str(layout.agent),
        "lease_ttl": NODE_TTL,
        "etcd": _etcd_section(layout),
        "engines": {"on_stop": "stop", "stop_seconds": ENGINE_STOP_SECONDS},
        # The usual port may be an installed agent's, or another stack's.
        "metrics": {"listen": "127.0.0.1:0"},
        "insecure": True,
        "log": {"format": "text"},
    }


def local_url(listen: Listen) -> str:
    """The URL under which this machine reaches what listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104 - read, not bound
    return f"http://{Listen(host, listen.port)}"
