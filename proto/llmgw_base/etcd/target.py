"""Endpoints as the configuration writes them, and as gRPC wants them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from llmgw_base.etcd.errors import StoreRefusedError

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class Target:
    endpoint: str
    """As written, for messages."""
    address: str
    """For gRPC: ``host:port`` or ``unix:///path``."""
    secure: bool


def parse(endpoint: str, *, tls: bool) -> Target:
    """Reads ``http://host[:port]``, ``https://host[:port]`` or ``unix:///path``.

    Args:
        tls: whether certificates are configured; then nothing may go out in plain text.

    Raises:
        StoreRefusedError: none of these, or plaintext over the network although certificates are configured.
    """
    if endpoint.startswith("unix:///"):
        return Target(endpoint, endpoint, secure=False)
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        host, port, parts = None, 0, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.username:
        raise StoreRefusedError(
            f"etcd.endpoints: {endpoint!r} is not an endpoint; write http://host:2379, https://host:2379 or unix:///path"
        )
    if parts.scheme == "http" and tls:
        raise StoreRefusedError(f"etcd.endpoints: {endpoint} would send plain text although etcd.tls is set; write https://")
    return Target(endpoint, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", secure=parts.scheme == "https")
