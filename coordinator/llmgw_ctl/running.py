"""Which ``llmgwctl up`` run on this machine for this user.

Each writes ``admin.json`` into its state folder and a line about itself into ``<user state>/llmgw/running/<pid>.json``, so
that another terminal finds it wherever its state folder is. A process that is gone, or whose pid now belongs to another
program, does not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunningStack:
    """What ``up`` says about itself. ``started`` is the process's start time, see :func:`start_time`."""

    url: str
    token_file: Path
    router_url: str
    state_dir: Path
    pid: int
    started: int

    def to_json(self) -> str:
        return json.dumps(
            {
                "url": self.url,
                "token_file": str(self.token_file),
                "router_url": self.router_url,
                "state_dir": str(self.state_dir),
                "pid": self.pid,
                "started": self.started,
            },
            indent=2,
        )


def user_state(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/llmgw``, by default ``~/.local/state/llmgw``."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(base) / "llmgw"


def default_state_dir(environ: Mapping[str, str]) -> Path:
    return user_state(environ) / "up"


def registry(environ: Mapping[str, str]) -> Path:
    return user_state(environ) / "running"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone (or only a zombie).

    Together with the pid it names one process for good, as pids are used again.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def parse(text: str) -> RunningStack | None:
    """Reads what :meth:`RunningStack.to_json` wrote; None when it is something else."""
    try:
        data = json.loads(text)
        return RunningStack(
            str(data["url"]),
            Path(data["token_file"]),
            str(data["router_url"]),
            Path(data["state_dir"]),
            int(data["pid"]),
            int(data["started"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def announce(stack: RunningStack, environ: Mapping[str, str]) -> Path:
    """Writes the line that :func:`find_running` reads and returns its file; those of stacks that are gone are removed."""
    folder = registry(environ)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in folder.glob("*.json"):
        known = parse(file.read_text(errors="replace"))
        if known is None or start_time(known.pid) != known.started:
            file.unlink(missing_ok=True)
    path = folder / f"{stack.pid}.json"
    path.write_text(stack.to_json() + "\n")
    return path


def find_running(environ: Mapping[str, str]) -> RunningStack | None:
    """The stack that runs; of several, the one in the default state folder, otherwise the one started last."""
    stacks = []
    try:
        files = sorted(registry(environ).glob("*.json"))
    except OSError:
        return None
    for file in files:
        try:
            stack = parse(file.read_text())
        except (OSError, UnicodeDecodeError):
            continue
        if stack is not None and start_time(stack.pid) == stack.started:
            stacks.append(stack)
    default = default_state_dir(environ)
    return max(stacks, key=lambda each: (each.state_dir == default, each.started), default=None)
