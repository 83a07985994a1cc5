"""Why an engine ended, from its exit status and the end of its log. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_agent.engines.base import Pattern
from llmgw_agent.process.enter import NEVER

LINES_READ = 200


@dataclass(frozen=True, slots=True)
class ExitReason:
    """``text``: cause and remedy. ``final``: starting it again cannot help."""

    text: str
    final: bool = False
    port_taken: bool = False


def classify(
    status: int | None, log: Sequence[str], patterns: Sequence[Pattern], *, was_ready: bool, oom: bool = False
) -> ExitReason:
    """``status``: exit code, or minus the signal's number, or None if unknown. ``log``: the attempt's last lines, oldest first.
    ``oom``: the kernel is known to have killed a process of it for want of memory.

    A pattern marked final only counts before the engine was ready: later the same words may come from a request.
    """
    if oom:
        return ExitReason(
            f"{_ended(status)}: the kernel killed a process of it because the host's memory ran out. Give the model more "
            "memory or smaller limits, or run less beside it."
        )
    lines = log[-LINES_READ:]
    for line in lines:
        if not was_ready and (said := line.partition(NEVER)[2]):
            return ExitReason(
                f"the program cannot be started:{said}. Correct its permissions, or install a build for this machine.", True
            )
    # In the order of the patterns, not of the lines: the causes that say most come first.
    for pattern in patterns:
        for line in lines:
            match = pattern.regex.search(line)
            if match is None or (was_ready and (pattern.final or pattern.port_taken)):
                continue
            detail = next((group for group in match.groups() if group), "")
            cause = pattern.cause.format(detail)
            return ExitReason(f"{_ended(status)}: {cause} {pattern.remedy}", pattern.final, pattern.port_taken)
    if status == -signal.SIGKILL:
        return ExitReason(
            f"{_ended(status)}, most likely by the kernel because memory ran out: look at `dmesg`, "
            "and give the model more memory or smaller limits."
        )
    if status == -signal.SIGILL and not was_ready:
        return ExitReason(
            f"{_ended(status)}: the program was built for another kind of CPU. Install a build for this one.", final=True
        )
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    said = f'; its last line was "{last[:200]}"' if last else " and wrote nothing"
    return ExitReason(f"{_ended(status)}{said}. The log tells more: `llmgwctl replica logs`.")


def _ended(status: int | None) -> str:
    if status is None:
        return "the engine ended"
    if status >= 0:
        return f"the engine exited with {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the engine was killed by {name}"
