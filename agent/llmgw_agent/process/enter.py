"""Becomes a program at the place where it belongs: ``python -I -S enter.py HOW …``; the process keeps its number.

- ``cgroup FOLDER PROGRAM ARGV…``: joins the cgroup, then becomes PROGRAM.
- ``order FILE``: what the agent wrote for a program that systemd starts, as JSON: ``program``, ``argv``, ``environment``,
  ``folder``, ``output`` (a named pipe) and ``namespaces`` that it must share. The file holds secrets and is removed first.

The agent cannot do this itself: it must not run code between fork and exec, and a process that is moved into its cgroup after
its start could have children outside by then. Only the standard library is imported: this file runs alone.
"""

# Started before every engine: without pathlib it starts faster.
# ruff: noqa: PTH108, PTH115, PTH118, PTH123
from __future__ import annotations

import errno
import os
import signal
import sys

#: What the last line of the log begins with when there is no use in another try, and when there is.
NEVER, LATER = "[llmgw] cannot start", "[llmgw] cannot now start"
CANNOT_ENTER, CANNOT_RUN, ELSEWHERE = 125, 126, 124
_LATER = frozenset({"ENOMEM", "EAGAIN", "ENFILE", "EMFILE", "EIO", "ETXTBSY"})


def join(folder: str) -> None:
    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
        file.write("0")


def own_environment() -> dict[bytes, bytes]:
    """As it was given: Python adds to its own in some locales."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (part.partition(b"=") for part in file.read().split(b"\0") if b"=" in part)
        return {name: value for name, _, value in pairs}


def become(program: str, argv: list[str], environment: dict[bytes, bytes]) -> int:
    # Python ignores these, and what is ignored stays so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, argv, environment)  # noqa: S606 - what this file is for
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        words = LATER if code in _LATER else NEVER
        os.write(2, f"{words} {program}: {error.strerror}\n".encode(errors="replace"))
        return CANNOT_RUN


def take_order(file: str) -> int:
    import json

    with open(file, "rb") as opened:
        order = json.loads(opened.read())
    os.unlink(file)
    for name, wanted in order["namespaces"].items():
        if os.readlink(f"/proc/self/ns/{name}") != wanted:
            return ELSEWHERE
    # Both ways, as the agent would have it: an engine with a reader of its own survives the writer of its log.
    output = os.open(order["output"], os.O_RDWR)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.chdir(order["folder"])
    environment = {os.fsencode(name): os.fsencode(value) for name, value in order["environment"].items()}
    return become(order["program"], order["argv"], environment)


def main(argv: list[str]) -> int:
    how, where, *rest = argv
    if how == "order":
        return take_order(where)
    try:
        join(where)
    except OSError as error:
        os.write(2, f"[llmgw] cannot join the cgroup {where}: {error.strerror}\n".encode(errors="replace"))
        return CANNOT_ENTER
    return become(rest[0], rest[1:], own_environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
