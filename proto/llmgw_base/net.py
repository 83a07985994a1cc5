"""Listen addresses and ports."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from llmgw_base.config import ConfigError


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str, *, key: str = "listen") -> Listen:
    """Reads ``host:port``, ``[v6]:port`` or a bare ``port``, which means loopback.

    Raises:
        ConfigError: not one of these, or a port outside 0 to 65535.
    """
    host, separator, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if separator else "127.0.0.1"
    if not port.isascii() or not port.isdigit() or int(port) > 65_535 or not host:
        raise ConfigError(f"{key}: {text!r} is not an address; write host:port, for example 127.0.0.1:8080, or only a port")
    return Listen(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only; a name other than localhost is taken not to be."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_safe(listen: Listen, *, tls: bool, insecure: bool, key: str = "listen") -> None:
    """Refuses to serve plaintext to other machines unless the configuration says so.

    Raises:
        ConfigError: not loopback, no TLS and not ``insecure: true``.
    """
    if not (tls or insecure or is_loopback(listen.host)):
        raise ConfigError(
            f"{key}: {listen} would serve plaintext to other machines; set tls:, listen on 127.0.0.1, or say insecure: true"
        )


def bind(listen: Listen, *, key: str = "listen", reuse_port: bool = False, backlog: int = 1024) -> socket.socket:
    """A listening TCP socket, non-blocking.

    Raises:
        ConfigError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((listen.host, listen.port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{key}: cannot listen on {listen}: {error.strerror}; {_remedy(listen, error)}") from error
    sock.setblocking(False)
    return sock


def _remedy(listen: Listen, error: OSError) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        holder = port_holder(listen.port)
        return f"{holder or 'another program'} holds the port; stop it or choose another port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need the right to bind them; choose a higher port"
    return "choose an address of this machine"


def port_holder(port: int) -> str | None:
    """Who listens on a local TCP port, as ``name (pid 123)``, where this user may know it."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None
