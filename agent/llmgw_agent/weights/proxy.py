"""An HTTP proxy between the node and the internet: https goes through a tunnel, http as requests for whole URLs."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from .headers import basic

_LONGEST_ANSWER: Final = 16 << 10


@dataclass(frozen=True)
class Proxy:
    """``direct``: hosts (``mirror.lan``) and domains (``.lan``) that are reached without it."""

    host: str
    port: int
    headers: tuple[tuple[str, str], ...]
    direct: frozenset[str]

    @classmethod
    def read(cls, url: str, direct: Iterable[str]) -> Self:
        """``http://[user:password@]host[:port]``"""
        parts = urlsplit(url)
        user = unquote(parts.netloc.rpartition("@")[0])
        headers = (("Proxy-Authorization", basic(user)["Authorization"]),) if user else ()
        return cls(parts.hostname or "", parts.port or 3128, headers, frozenset(each.lower() for each in direct))

    def serves(self, host: str) -> bool:
        host = host.lower().rstrip(".")
        names = {host, *(host[at:] for at, letter in enumerate(host) if letter == ".")}
        return not names & self.direct

    def tunnel(self, connection: socket.socket, host: str, port: int) -> None:
        """Makes a fresh connection to the proxy one to ``host``. Raises OSError."""
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}", *(f"{name}: {value}" for name, value in self.headers)]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
        answer = b""
        while b"\r\n\r\n" not in answer:
            # One byte at a time, since what follows the head belongs to the tunnel.
            byte = connection.recv(1)
            if not byte or len(answer) > _LONGEST_ANSWER:
                raise ConnectionError(f"the proxy {self.host}:{self.port} broke off")
            answer += byte
        status = answer.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if len(status) < 2 or not status[1].startswith("2"):
            raise ConnectionError(f"the proxy {self.host}:{self.port} refuses the tunnel: {' '.join(status[1:])}")
