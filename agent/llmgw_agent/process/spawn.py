"""Starts a program in a session of its own, with its output going to a named pipe that the log writer reads."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw_agent.errors import AttemptError, RejectedError
from llmgw_agent.process.identity import ATTEMPT, CLUSTER, EPOCH, LOGMON, NODE, PORT, SHARD, WISH, Identity, read_stat

#: Inherited variables that speak of the agent and would mislead an engine, or mark it as another one's.
_OURS = frozenset(
    {SHARD, EPOCH, CLUSTER, NODE, ATTEMPT, PORT, WISH, LOGMON, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS"}
    | {"LISTEN_PID", "LISTEN_FDNAMES", "JOURNAL_STREAM", "INVOCATION_ID", "CREDENTIALS_DIRECTORY"}
)
#: Python ignores these, and ignored signals stay ignored across exec.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def clean_environment(own: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """What an engine gets: the agent's environment without its own affairs, then ``extra``."""
    kept = {name: value for name, value in own.items() if name not in _OURS}
    return kept | dict(extra)


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """Its path. Raises RejectedError if there is no such program, or it may not be executed."""
    program = shutil.which(name, path=environment.get("PATH"))
    if program is None:
        raise RejectedError(f"program {name!r} is not on this node or not executable; install it or give its full path")
    return program


def spawn(argv: Sequence[str], environment: Mapping[str, str], output: int, boot: str) -> Identity:
    """Starts ``argv`` with stdin from /dev/null and stdout and stderr to the descriptor ``output``.

    Raises:
        RejectedError: there is no such program, or it may not be executed.
        AttemptError: the kernel is out of processes or memory.
    """
    program = find_program(argv[0], environment)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    try:
        pid = os.posix_spawn(
            program, list(argv), environment, file_actions=actions, setsid=True, setsigmask=[], setsigdef=_DEFAULT_SIGNALS
        )
    except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
        raise RejectedError(
            f"program {program} cannot be started: {error.strerror}; correct its permissions or path"
        ) from error
    except OSError as error:
        if error.errno == 8:  # ENOEXEC
            raise RejectedError(f"program {program} is not executable on this machine: {error.strerror}") from error
        raise AttemptError(f"program {program} cannot be started now: {error.strerror}") from error
    stat = read_stat(pid)
    # A child stays in /proc, as a zombie at least, until its parent has looked; and that is us.
    assert stat is not None
    return Identity(pid, stat.start_ticks, boot)


def prefer_as_oom_victim(pid: int) -> None:
    """Lets the kernel kill the engine before the agent and the log writer when memory is out; best effort."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("300")
    except OSError:
        return
