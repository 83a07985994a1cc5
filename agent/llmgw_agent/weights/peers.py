"""Agents give each other verified files, by digest: who to ask, and the aiohttp application that answers.

``GET <base>/blobs/<kind>/<hex>`` (and HEAD), with ``Range``. The same paths as a mirror's, so a client need not care which it
asks. TLS with client certificates is set where the application is served; ``authorize`` decides on each request.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from llmgw_base.clock import Clock
from llmgw_proto.digests import Digest, DigestError

if TYPE_CHECKING:
    from .store import WeightStore

_BLOCK: Final = 512 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Peer:
    """Where another agent serves its files, and how to identify to it."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None


class PeerSource(Protocol):
    """Who may have a file. Peers are trusted with addresses, never with content: that is checked against the digest."""

    async def peers(self, digest: str) -> Sequence[Peer]:
        """Peers to ask for ``sha256:<hex>`` or ``git:<hex>``, best first; empty when there are none. Must not raise."""
        ...

    def dropped(self, peer: Peer, reason: str) -> None:
        """The peer sent wrong bytes."""
        ...


class Rate:
    """A limit in bytes per second over all who share it, with bursts of a quarter of a second."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now - 0.25) + count / self._rate
        if self._free_at > now:
            await self._clock.sleep(self._free_at - now)


Authorize = Callable[[web.Request], Awaitable[bool]]


def blob_url(base: str, digest: Digest) -> str:
    """Where a peer or a mirror has the content."""
    return f"{base.rstrip('/')}/blobs/{digest.kind}/{digest.hex}"


def peer_app(
    store: WeightStore,
    *,
    clock: Clock,
    authorize: Authorize | None = None,
    bytes_per_second: float | None = None,
    max_streams: int = 8,
) -> web.Application:
    """Serves the store's verified files. Beyond ``max_streams`` at once it answers 503, and the asker goes elsewhere."""
    streams = asyncio.Semaphore(max_streams)
    rate = Rate(bytes_per_second, clock) if bytes_per_second is not None else None

    async def blob(request: web.Request) -> web.StreamResponse:
        if authorize is not None and not await authorize(request):
            raise web.HTTPForbidden(text="this peer is not accepted here\n")
        try:
            digest = Digest.parse(f"{request.match_info['kind']}:{request.match_info['hex']}")
            file = store.blob_path(digest).open("rb")
        except (DigestError, FileNotFoundError):
            raise web.HTTPNotFound(text="not here\n") from None
        with file:
            if streams.locked():
                raise web.HTTPServiceUnavailable(text="busy\n", headers={"Retry-After": "5"})
            async with streams:
                return await _send(request, file.fileno(), digest, rate)

    app = web.Application()
    app.router.add_get("/blobs/{kind}/{hex}", blob)
    return app


async def _send(request: web.Request, descriptor: int, digest: Digest, rate: Rate | None) -> web.StreamResponse:
    size = os.fstat(descriptor).st_size
    start, end, status = 0, size, 200
    if match := _RANGE.fullmatch(request.headers.get("Range", "")):
        start, end, status = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size), 206
        if start >= end:
            raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
    response = web.StreamResponse(status=status, headers={"ETag": f'"{digest.hex}"', "Accept-Ranges": "bytes"})
    if status == 206:
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    response.content_length = end - start
    response.content_type = "application/octet-stream"
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    while start < end:
        count = min(_BLOCK, end - start)
        if rate is not None:
            await rate.take(count)
        block = await asyncio.to_thread(os.pread, descriptor, count, start)
        if not block:
            break  # shorter than it was: the length tells the asker
        await response.write(block)
        start += len(block)
    return response
