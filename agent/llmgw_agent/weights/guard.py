"""Resolves a host and checks what it resolves to, once; the connection is then made to exactly these addresses."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from .addresses import Network, refusal
from .errors import AddressRefusedError, SourceUnavailableError

Resolve = Callable[[str, int], list[str]]


def system_resolve(host: str, port: int) -> list[str]:
    """The addresses of a host as the system resolves it. Raises OSError. Blocking."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host in lower case, and port (with the scheme's default). Raises ValueError."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower().rstrip("."), parts.port or (443 if scheme == "https" else 80)


class Guard:
    """Decides where connections may go.

    ``trusted`` are base URLs that the operator configured (hub endpoint, mirror): their own host and port may be anywhere.
    """

    def __init__(self, allow_networks: Iterable[str], trusted: Iterable[str] = (), resolve: Resolve = system_resolve) -> None:
        self._allowed: Sequence[Network] = [ipaddress.ip_network(each) for each in allow_networks]
        self._trusted = {origin(each)[1:] for each in trusted}
        self._resolve = resolve

    def addresses(self, host: str, port: int, *, trusted: bool = False) -> list[str]:
        """Where to connect to, in the order to try. Blocking.

        Raises:
            AddressRefusedError: one of the addresses is not allowed.
            SourceUnavailableError: the name does not resolve.
        """
        try:
            found = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise SourceUnavailableError(f"{host} cannot be resolved: {error}; check the name and this node's DNS") from error
        if not found:
            raise SourceUnavailableError(f"{host} has no address; check the name and this node's DNS")
        if not trusted and (host.lower().rstrip("."), port) not in self._trusted:
            for each in found:
                reason = refusal(each, self._allowed)
                if reason is not None:
                    raise AddressRefusedError(
                        f"{host} leads to {each}, which is {reason}; if that is meant, add it to weights.allow_networks"
                    )
        return found
