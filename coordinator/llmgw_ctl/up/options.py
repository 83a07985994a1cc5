"""What ``up`` was told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class UpOptions:
    """``admin_listen`` None takes a free port; ``timeout`` is how long models may take to come up, in seconds."""

    state_dir: Path
    listen: str = "127.0.0.1:8080"
    admin_listen: str | None = None
    sample: bool = False
    ask: str | None = None
    serve: tuple[str, ...] = ()
    etcd: Path | None = None
    quiet: bool = False
    timeout: float = 600.0
