"""Own ports for engines, outside the range from which the kernel takes ports for outgoing connections."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from pathlib import Path

from llmgw_agent.errors import AttemptError
from llmgw_base.clock import Clock

REST_SECONDS = 60.0
_CANDIDATES = ((20_000, 24_999), (10_000, 14_999), (61_100, 65_000))


def ephemeral_range(path: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> tuple[int, int]:
    try:
        low, high = path.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def default_range(ephemeral: tuple[int, int]) -> tuple[int, int]:
    """The first of a few usual ranges that the kernel does not use itself."""
    return next((each for each in _CANDIDATES if not overlaps(each, ephemeral)), _CANDIDATES[0])


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind it now. A port in TIME_WAIT counts as free, as it does for engines."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


class Ports:
    """Hands out ports one after another, so that a port just given back rests before it is used again.

    A late request for the old engine must not reach a new one.
    """

    def __init__(
        self,
        first: int,
        last: int,
        host: str,
        clock: Clock,
        *,
        free: Callable[[str, int], bool] = is_free,
        start: int | None = None,
    ) -> None:
        self._first, self._last, self._host = first, last, host
        self._clock, self._free = clock, free
        # Agents that share a host (in tests) should not all begin at the same port.
        self._next = random.randint(first, last) if start is None else start  # noqa: S311 - not a secret
        self._held: set[int] = set()
        self._resting: dict[int, float] = {}

    def take(self) -> int:
        """A free port, held until :meth:`give_back`.

        Raises:
            AttemptError: none is free.
        """
        now = self._clock.monotonic()
        self._resting = {port: until for port, until in self._resting.items() if until > now}
        size = self._last - self._first + 1
        rested = [self._first + (self._next - self._first + step) % size for step in range(size)]
        # When all others are taken, a port that still rests is better than none.
        for port in [*(each for each in rested if each not in self._resting), *self._resting]:
            if port not in self._held and self._free(self._host, port):
                self._held.add(port)
                self._next = self._first + (port + 1 - self._first) % size
                return port
        raise AttemptError(f"no free port from {self._first} to {self._last}; widen engines.ports or stop what listens there")

    def hold(self, port: int) -> None:
        """Marks the port of an adopted engine."""
        self._held.add(port)

    def give_back(self, port: int) -> None:
        self._held.discard(port)
        self._resting[port] = self._clock.monotonic() + REST_SECONDS
