"""A small blocking HTTP client for worker threads: guarded addresses, redirects, resumable bodies.

A thread that receives into the page cache keeps a fast link busy without touching the event loop: with two free processors it
is as fast as curl although it hashes, and the loop comes around within 10 ms (bench/weights.py).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urljoin, urlsplit

from .errors import AddressRefusedError, SourceUnavailableError
from .guard import Guard, origin
from .proxy import Proxy
from .sources import redacted

REDIRECTS: Final = (301, 302, 303, 307, 308)
_MAX_REDIRECTS: Final = 10
_AGENT: Final = "llmgw-agent"


@dataclass(frozen=True)
class Target:
    """A URL to get. ``headers`` go to this origin only; ``trusted`` lifts the address check for it, not for redirects."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    trusted: bool = False
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return redacted(self.url)


class _Connection(http.client.HTTPConnection):
    """Connects to addresses that were checked, whatever the name means by now."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: list[tuple[str, int]],
        timeout: float,
        tls: ssl.SSLContext | None,
        proxy: Proxy | None,
    ) -> None:
        super().__init__(host, port, timeout=timeout)
        self._addresses = addresses
        self._tls = tls
        self._proxy = proxy

    def connect(self) -> None:
        problem: OSError | None = None
        for address in self._addresses:
            try:
                plain = socket.create_connection(address, self.timeout)
            except OSError as error:
                problem = error
                continue
            try:
                if self._proxy is not None and self._tls is not None:
                    self._proxy.tunnel(plain, self.host, self.port)
                self.sock = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls is not None else plain
            except BaseException:
                plain.close()
                raise
            return
        assert problem is not None
        raise problem


class Exchange:
    """An answer whose body is still to be read. Use as a context manager. Header names are in lower case."""

    def __init__(self, connection: _Connection, target: Target) -> None:
        self._connection = connection
        self._socket = connection.sock  # http.client drops its reference when it has the answer
        self._response = response = connection.getresponse()
        self.target = target
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    @property
    def length(self) -> int | None:
        """Bytes that the body should have, None when the server does not say."""
        value = self.headers.get("content-length", "")
        return int(value) if value.isascii() and value.isdigit() and "transfer-encoding" not in self.headers else None

    @property
    def framed(self) -> bool:
        """Whether a body that was cut can be told from a whole one."""
        return self.length is not None or self._response.chunked

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, as soon as there are some; empty at the end. Raises SourceUnavailableError."""
        try:
            return self._response.read1(size)
        except TimeoutError as error:
            raise SourceUnavailableError(f"{self.target} stopped sending") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: reading after abort()
            raise SourceUnavailableError(f"{self.target} broke off: {_cause(error)}") from error

    def read_all(self, limit: int) -> bytes:
        """The whole body. Raises SourceUnavailableError, also when there is more than ``limit`` bytes of it."""
        parts: list[bytes] = []
        size = 0
        while part := self.read(1 << 16):
            size += len(part)
            if size > limit:
                raise SourceUnavailableError(f"{self.target} sends more than {limit} bytes where a short answer belongs")
            parts.append(part)
        if self.length is not None and size != self.length:
            raise SourceUnavailableError(f"{self.target} broke off after {size} of {self.length} bytes")
        return b"".join(parts)

    def abort(self) -> None:
        """Ends a read that another thread waits in."""
        try:
            # The plain socket's method: TLS's own would let the reader go on with bytes that are not decrypted.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Opens connections for one store. Blocking: call it in worker threads."""

    def __init__(
        self, guard: Guard, *, connect_seconds: float, idle_seconds: float, tls: ssl.SSLContext, proxy: Proxy | None = None
    ) -> None:
        self._guard = guard
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._tls = tls
        self._proxy = proxy

    def once(self, target: Target, headers: Mapping[str, str], method: str = "GET") -> Exchange:
        """One request, no redirect followed.

        Raises:
            AddressRefusedError: the host leads where the settings do not allow.
            SourceUnavailableError: it does not resolve, connect or answer.
        """
        try:
            scheme, host, port = origin(target.url)
            parts = urlsplit(target.url)
        except ValueError as error:
            raise SourceUnavailableError(f"a redirect leads to an unreadable URL: {error}") from None
        if scheme not in ("http", "https") or not host:
            raise AddressRefusedError(f"{target} is neither http nor https; only these are fetched")
        proxy = self._proxy if self._proxy is not None and not target.trusted and self._proxy.serves(host) else None
        addresses = self._addresses(host, port, target.trusted, proxy)
        tls = (target.tls or self._tls) if scheme == "https" else None
        connection = _Connection(host, port, addresses, self._connect_seconds, tls, proxy)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = {"user-agent": _AGENT, "accept-encoding": "identity", "connection": "close"}
        if proxy is not None and tls is None:
            path = f"http://{parts.netloc}{path}"
            sent.update((name.lower(), value) for name, value in proxy.headers)
        sent.update((name.lower(), value) for name, value in {**target.headers, **headers}.items())
        try:
            connection.request(method, path, headers=sent)
            connection.sock.settimeout(self._idle_seconds)
            return Exchange(connection, target)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise SourceUnavailableError(
                f"{target}: its certificate is not accepted ({error.verify_message}); "
                "if it comes from a private authority, set weights.ca_file"
            ) from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            connection.close()
            raise SourceUnavailableError(f"{target} does not answer: {_cause(error)}") from error

    def _addresses(self, host: str, port: int, trusted: bool, proxy: Proxy | None) -> list[tuple[str, int]]:
        """Where to connect to. Through a proxy, a name that only the proxy can resolve is left to the proxy's own rules."""
        if proxy is None:
            return [(each, port) for each in self._guard.addresses(host, port, trusted=trusted)]
        with contextlib.suppress(SourceUnavailableError):
            self._guard.addresses(host, port)
        return [(each, proxy.port) for each in self._guard.addresses(proxy.host, proxy.port, trusted=True)]

    def follow(self, target: Target, headers: Mapping[str, str], method: str = "GET", *, promised: bool = False) -> Exchange:
        """As :meth:`once`, along redirects, each checked anew; credentials stay at the origin that they were given for.

        ``promised``: a digest stands for the content, so a redirect from https to http does no harm.
        """
        for _ in range(_MAX_REDIRECTS):
            exchange = self.once(target, headers, method)
            location = exchange.headers.get("location")
            if exchange.status not in REDIRECTS or location is None:
                return exchange
            exchange.close()
            target = redirect(target, location, promised=promised)
        raise SourceUnavailableError(f"{target}: more than {_MAX_REDIRECTS} redirects in a row")


def redirect(target: Target, location: str, *, promised: bool) -> Target:
    """Where a redirect leads and what may be sent there. Raises AddressRefusedError, SourceUnavailableError."""
    try:
        following = urljoin(target.url, location)
        before, after = origin(target.url), origin(following)
    except ValueError as error:
        raise SourceUnavailableError(f"{target} redirects to an unreadable URL: {error}") from None
    if before[0] == "https" and after[0] == "http" and not promised:
        raise AddressRefusedError(f"{target} redirects from https to http; add #sha256=... to the source to allow that")
    if before == after:
        return replace(target, url=following)
    return Target(following)


def _cause(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (str(error) or type(error).__name__).removeprefix("[Errno ")
