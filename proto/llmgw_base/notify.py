"""systemd's notification protocol, sd_notify(3): a datagram to ``$NOTIFY_SOCKET``. Outside systemd nothing happens."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environment.get("WATCHDOG_USEC", "")
        self.watchdog_interval: float | None = (
            int(microseconds) / 2e6 if self._address and mine and microseconds.isdigit() and int(microseconds) > 0 else None
        )
        """Seconds between two signs of life: half of what systemd allows. None: no watchdog."""

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line that ``systemctl status`` shows."""
        self._send("STATUS=" + text.replace("\n", " "))

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            try:
                sock.sendto(message.encode(), self._address)
            except OSError:
                # systemd restarts a service whose signs of life stop; a service must not die of its supervisor.
                return
