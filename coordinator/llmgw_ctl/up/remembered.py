"""What ``up`` keeps from start to start besides etcd's data: the node's name and the admin API's port and token."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from llmgw_ctl.up.layout import Layout


def load(layout: Layout) -> dict[str, Any]:
    """Empty when there is nothing yet or it cannot be read: then it is chosen anew."""
    try:
        data = json.loads(layout.remembered.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def save(layout: Layout, data: dict[str, Any]) -> None:
    layout.remembered.write_text(json.dumps(data, indent=2))


def node_name(data: dict[str, Any], root: Path) -> str:
    """The name of the first start: etcd knows this machine by it, also when the host is renamed.

    It has a part that belongs to the state folder, for another agent may run on this host, under the host's own name.
    """
    name = data.get("node")
    if isinstance(name, str) and name:
        return name
    host = "-".join(socket.gethostname().replace("/", "-").split())[:100] or "node"
    return f"{host}-{hashlib.sha256(bytes(root)).hexdigest()[:4]}"


def ensure_token(path: Path) -> None:
    """Writes a new token unless there is one; readable for this user only."""
    if path.is_file() and path.read_text().strip():
        path.chmod(0o600)
        return
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    path.chmod(0o600)
