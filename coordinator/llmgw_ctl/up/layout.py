"""Where ``up`` keeps what. Nothing here touches the disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

#: The kernel's limit for the path of a unix socket is 107 bytes; the longest name that we add is 24.
_LONGEST_SOCKET_FOLDER = 80


@dataclass(frozen=True, slots=True)
class Layout:
    """The state folder: an absolute path. ``scratch`` is where sockets go when the state folder's path is too long."""

    root: Path
    scratch: Path = Path("/tmp")  # noqa: S108 - a folder of mode 700 is made below it, and checked to be ours

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def admin(self) -> Path:
        """Where other programs read how to reach the admin API."""
        return self.root / "admin.json"

    @property
    def token(self) -> Path:
        return self.root / "admin.token"

    @property
    def remembered(self) -> Path:
        return self.root / "remembered.json"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def coordinator(self) -> Path:
        return self.root / "coordinator"

    @property
    def router(self) -> Path:
        return self.root / "router"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Pid files."""
        return self.root / "run"

    @property
    def sockets(self) -> Path:
        """etcd's sockets: reachable for this user only."""
        inside = self.root / "sockets"
        if len(bytes(inside)) <= _LONGEST_SOCKET_FOLDER:
            return inside
        return self.scratch / f"llmgw-up-{hashlib.sha256(bytes(self.root)).hexdigest()[:16]}"

    def log(self, child: str) -> Path:
        return self.logs / f"{child}.log"

    def config(self, child: str) -> Path:
        return self.root / "config" / f"{child}.yaml"

    def pid_file(self, child: str) -> Path:
        return self.run / f"{child}.json"

    def folders(self) -> tuple[Path, ...]:
        """All folders to make, parents first."""
        own = (self.etcd, self.coordinator, self.router, self.agent, self.logs, self.run, self.root / "config", self.sockets)
        return (self.root, *own)
