"""Two models come, grow, shrink and go: no process, port or key is left behind."""

from __future__ import annotations

import socket
from pathlib import Path

from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.stack import Stack, chat, fake_model, status
from llmgw_testing.wait import wait_until


def keys(etcd: EtcdServer) -> list[str]:
    return [
        key
        for key in etcd.ctl("get", "--prefix", "--keys-only", "/llmgw/v1/").split()
        if key.split("/")[3] in ("models", "assignments", "shards", "endpoints")
    ]


def taken(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def kept_folders(agent: Path) -> set[Path]:
    """All but logs and the store of weights, which has folders of its own from the start."""
    found = {path for path in agent.rglob("*") if path.is_dir() and "log" not in str(path)}
    return {path for path in found if agent / "weights" not in (path, *path.parents)}


def test_two_models_scaled_and_removed(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.coordinator()
        stack.agent("n1")
        router = stack.router()
        folders = kept_folders(tmp_path / "agent-n1")
        stack.apply(fake_model("org/first"))
        stack.apply(fake_model("second"))
        ports = {each["port"] for each in stack.ready("org/first", 1) + stack.ready("second", 1)}
        assert chat(router.url, "org/first")[0] == chat(router.url, "second")[0] == 200

        stack.ctl("model", "scale", "org/first", "2")
        both = stack.ready("org/first", 2)
        ports |= {each["port"] for each in both}
        assert len({each["port"] for each in both}) == 2
        assert len(stack.engines()) == 3

        stack.ctl("model", "scale", "org/first", "1")
        stack.ready("org/first", 1)
        wait_until(lambda: len(stack.engines()) == 2, within=20, what="the surplus engine to end")
        assert chat(router.url, "org/first")[0] == chat(router.url, "second")[0] == 200

        stack.ctl("model", "remove", "org/first")
        stack.ctl("model", "remove", "second")
        wait_until(lambda: stack.engines() == [], within=20, what="all engines to end")
        wait_until(lambda: keys(stack.etcd) == [], within=10, what="all keys to go")
        assert [port for port in ports if taken(port)] == []
        assert status(f"{router.url}/v1/models") == 200
        assert chat(router.url, "second")[0] == 404
        assert kept_folders(tmp_path / "agent-n1") <= folders | {tmp_path / "agent-n1" / "shards"}
        assert [
            each for each in (tmp_path / "agent-n1/weights").rglob("*") if each.is_file() and each.parent.name != "locks"
        ] == []
