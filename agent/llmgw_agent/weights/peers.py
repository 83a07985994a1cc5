"""What agents ask of each other about weights: who may have a content, whose turn it is to fetch it, and from where.

``GET <base>/blobs/<kind>/<hex>`` gives a verified file, by the same path as a mirror; ``GET <base>/contents/<content>`` tells
how far a node is that fetches that content now. The other end is :mod:`.serve`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from llmgw_proto.digests import Digest

from .errors import WeightsError


@dataclass(frozen=True)
class Peer:
    """Where another agent serves its files, and how to identify to it."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    node: str = ""


@dataclass(frozen=True)
class Sharing:
    """How a node gets on with a content that it fetches: the digests of the files that it can give, and the bytes that it has
    fetched and hashed, which grow as long as it gets on.
    """

    work: int
    digests: tuple[str, ...]


class Turn(Protocol):
    """A node's place among those that want the same content at the same time."""

    @property
    def waits_for(self) -> str:
        """The node that fetches the same and is waited for; empty when nobody is."""
        ...

    async def peers(self, digest: str) -> Sequence[Peer]:
        """Whom to ask for ``sha256:<hex>`` or ``git:<hex>``, best first; empty: the source, now. Waits while another node
        fetches the content and gets on. Must not raise.
        """
        ...

    def left(self, peer: Peer, digest: str, error: WeightsError) -> None:
        """The peer did not give the file: not there, busy, gone, or wrong bytes (DigestMismatchError)."""
        ...


class PeerSource(Protocol):
    """Peers are trusted with addresses, never with content: that is checked against the digest."""

    def turn(self, content: str, done: Callable[[], int]) -> AbstractAsyncContextManager[Turn]:
        """While it is entered, this node counts as fetching the content. ``done`` says how much has been done for it, as
        :attr:`Sharing.work`.
        """
        ...

    def changed(self) -> None:
        """What is stored here is no longer what it was."""
        ...


def blob_url(base: str, digest: Digest) -> str:
    """Where a peer or a mirror has the content."""
    return f"{base.rstrip('/')}/blobs/{digest.kind}/{digest.hex}"


def content_url(base: str, content: str) -> str:
    """Where a peer tells how far it is with what it fetches."""
    return f"{base.rstrip('/')}/contents/{content}"
