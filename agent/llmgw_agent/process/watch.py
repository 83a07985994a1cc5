"""Notices the death of a process at once, whether it is our child or was adopted."""

from __future__ import annotations

import asyncio
import os
import signal

from llmgw_agent.process.identity import Identity, boot_id, read_stat


class Watch:
    """One process, by pidfd: signals can reach no other process, and its end wakes the event loop."""

    def __init__(self, identity: Identity, fd: int | None) -> None:
        """``fd`` None: it has ended already."""
        self.identity = identity
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if fd is None:
            self._fd = -1
            self._ended.set_result(None)
        else:
            self._fd = fd
            asyncio.get_running_loop().add_reader(fd, self._on_end)

    @classmethod
    def open(cls, identity: Identity) -> Watch | None:
        """None if that very process runs no more. Call from the event loop's thread."""
        try:
            fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        # Only now is the number bound to one process; if it is another's, look away. A dead child keeps its start time.
        stat = read_stat(identity.pid)
        if stat is None or stat.start_ticks != identity.start_ticks or identity.boot_id != boot_id():
            os.close(fd)
            return None
        return cls(identity, fd)

    @property
    def ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> int | None:
        """Returns when the process has ended: its exit code, ``-signal``, or None where only its parent may know."""
        return await asyncio.shield(self._ended)

    def send(self, number: signal.Signals) -> None:
        if not self.ended:
            send_to(self._fd, number)

    def close(self) -> None:
        """Stops watching; the process goes on."""
        if not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._ended.cancel()

    def _on_end(self) -> None:
        code = reap(self._fd)
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        if not self._ended.done():
            self._ended.set_result(code)


def reap(fd: int) -> int | None:
    """The exit status of a dead child, taken off the kernel's list; None if it was no child of ours."""
    try:
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def send_to(fd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        # Already dead, or it took another user's identity: the caller looks again anyway.
        return
