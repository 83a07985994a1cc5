"""What is kept of an engine that is suspected, before it is ended: its own figures, its threads, the end of its log."""

from __future__ import annotations

from pathlib import Path

from llmgw_agent.engines.client import EngineClient, EngineSilentError
from llmgw_agent.logs.files import pin_evidence, read_attempt

_ASKED = ("/metrics", "/slots")
_LONGEST = 64 << 10
_TIMEOUT = 2.0


async def ask_figures(client: EngineClient) -> list[str]:
    """What the engine says of itself now, as lines."""
    lines: list[str] = []
    for path in _ASKED:
        try:
            answer = await client.get(path, _TIMEOUT)
        except EngineSilentError as error:
            lines.append(f"[llmgw] {error}")
            continue
        if answer.status == 200:
            text = answer.body[:_LONGEST].decode(errors="replace")
            kept = [line for line in text.splitlines() if not line.startswith("#") and "_bucket{" not in line]
            lines += [f"[llmgw] GET {path}", *kept]
    return lines


def threads(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """One line for each of the process's threads: its name, state, and where in the kernel it waits. Blocking."""
    lines = []
    try:
        tasks = sorted((proc / str(pid) / "task").iterdir(), key=lambda each: int(each.name))
    except OSError:
        return []
    for task in tasks[:200]:
        try:
            name, _, rest = (task / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            waits = (task / "wchan").read_text(errors="replace").strip()
        except OSError:
            continue
        lines.append(f"{task.name} {name} {rest.split()[0]} {waits if waits not in ('', '0') else '-'}")
    return lines


def keep(folder: Path, epoch: int, reason: str, figures: list[str], pid: int, attempt: str) -> None:
    """Writes it all beside the log. Blocking. Raises OSError."""
    listed = ["[llmgw] threads: id, name, state, where it waits", *threads(pid)]
    log = ["[llmgw] the end of the log", *read_attempt(folder, attempt, _LONGEST)]
    pin_evidence(folder, epoch, reason, [*figures, *listed, *log])
