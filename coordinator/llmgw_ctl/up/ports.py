"""Listen addresses that are free."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from llmgw_base.config import ConfigError
from llmgw_base.net import Listen, parse_listen, port_holder
from llmgw_ctl.errors import BadInputError, StackError

DEFAULT_ADMIN = Listen("127.0.0.1", 7080)


class PortTakenError(StackError):
    """Another one may be free."""


def parse(text: str, option: str) -> Listen:
    """Raises BadInputError when it is not an address."""
    try:
        return parse_listen(text, key=option)
    except ConfigError as error:
        raise BadInputError(str(error), f"for example {option} 127.0.0.1:8080") from error


class Claims:
    """Use as a context manager. What is claimed stays reserved against other `up`s until its end.

    A port is free when it can be bound; but it is a child that binds it, later. So that two stacks that start at the same
    moment do not choose the same one, each reserves its ports by sockets in the kernel's abstract namespace, which end with
    the process.
    """

    def __init__(self) -> None:
        self._reserved: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for sock in self._reserved.values():
            sock.close()

    def claim(self, wanted: Listen, option: str) -> Listen:
        """The address with a port that was free just now; port 0 takes any.

        Raises:
            StackError: taken, or not an address of this machine; names the holder of the port where it can be found.
        """
        if wanted.port != 0:
            self._try(wanted, option)
            return wanted
        for port in _candidates():
            try:
                self._try(Listen(wanted.host, port), option)
            except PortTakenError:
                continue
            return Listen(wanted.host, port)
        raise StackError(f"no free port on {wanted.host}", f"name one with {option}")

    def claim_admin(self, text: str | None, remembered: object) -> Listen:
        """``text`` if given; else the port of the last start, the default port, or any free one, whichever is free first."""
        option = "--admin-listen"
        if text is not None:
            return self.claim(parse(text, option), option)
        usual = [Listen(DEFAULT_ADMIN.host, remembered)] if isinstance(remembered, int) and 0 < remembered < 65_536 else []
        for candidate in (*usual, DEFAULT_ADMIN):
            try:
                return self.claim(candidate, option)
            except PortTakenError:
                continue
        return self.claim(Listen(DEFAULT_ADMIN.host, 0), option)

    def _try(self, listen: Listen, option: str) -> None:
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            reservation.bind(f"\0llmgw-up-port-{listen.port}")
            _bind(listen, option)
        except OSError as error:
            reservation.close()
            raise PortTakenError(*_taken(listen, option, port_holder(listen.port) or "another `llmgwctl up`")) from error
        except StackError:
            reservation.close()
            raise
        self._reserved[listen.port] = reservation


def _candidates() -> Iterator[int]:
    """Ports below those that the kernel gives to outgoing connections, in random order."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = min(max(end - 12_000, 1_024), 20_000)
    yield from random.sample(range(first, max(end, first + 1_000)), k=200)


def _bind(listen: Listen, option: str) -> None:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((listen.host, listen.port))
            sock.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(*_taken(listen, option, port_holder(listen.port))) from error
            raise StackError(*_explain(listen, option, error)) from error


def _taken(listen: Listen, option: str, holder: str | None) -> tuple[str, str]:
    by = f" by {holder}" if holder else ""
    return (
        f"port {listen.port} is in use{by}: cannot listen on {listen}",
        f"stop that, or choose another port with {option}",
    )


def _explain(wanted: Listen, option: str, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EACCES:
        return f"not allowed to listen on {wanted}", f"choose a port of 1024 or above with {option}"
    return f"cannot listen on {wanted}: {error.strerror or error}", f"choose an address of this machine with {option}"
