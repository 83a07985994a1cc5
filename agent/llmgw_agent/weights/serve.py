"""Gives verified files to other agents: the aiohttp application, within a rate and a number of streams."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from aiohttp import web

from llmgw_base.clock import Clock
from llmgw_proto.digests import Digest, DigestError

from .metrics import Traffic

if TYPE_CHECKING:
    from .store import WeightStore

_BLOCK: Final = 1 << 20
#: Seconds after which an asker that was sent away may come again.
_RETRY_AFTER: Final = 2
#: Seconds in which an asker must take some of what is sent; one that is frozen would keep others from being given anything.
_STALLED = 60.0
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


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


def peer_app(
    store: WeightStore,
    *,
    clock: Clock,
    authorize: Authorize | None = None,
    bytes_per_second: float | None = None,
    max_streams: int = 8,
) -> web.Application:
    """Serves the store's verified files. Beyond ``max_streams`` at once it answers 503, and the asker goes elsewhere or waits.

    TLS with client certificates is set where the application is served; ``authorize`` decides on each request.
    """
    streams = asyncio.Semaphore(max_streams)
    rate = Rate(bytes_per_second, clock) if bytes_per_second is not None else None

    async def check(request: web.Request) -> None:
        if authorize is not None and not await authorize(request):
            raise web.HTTPForbidden(text="this peer is not accepted here\n")

    async def blob(request: web.Request) -> web.StreamResponse:
        await check(request)
        try:
            digest = Digest.parse(f"{request.match_info['kind']}:{request.match_info['hex']}")
            file = store.blob_path(digest).open("rb")
        except (DigestError, FileNotFoundError):
            raise web.HTTPNotFound(text="not here\n") from None
        with file:
            if streams.locked():
                raise web.HTTPServiceUnavailable(text="busy\n", headers={"Retry-After": str(_RETRY_AFTER)})
            async with streams:
                return await _send(request, file.fileno(), digest, rate, store.traffic)

    async def content(request: web.Request) -> web.Response:
        await check(request)
        sharing = await store.sharing(request.match_info["content"])
        if sharing is None:
            raise web.HTTPNotFound(text="not fetched now\n")
        return web.json_response({"work": sharing.work, "digests": list(sharing.digests)})

    app = web.Application()
    app.router.add_get("/blobs/{kind}/{hex}", blob)
    app.router.add_get("/contents/{content}", content)
    return app


async def _send(
    request: web.Request, descriptor: int, digest: Digest, rate: Rate | None, traffic: Traffic
) -> web.StreamResponse:
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
    async with aclosing(_blocks(descriptor, start, end)) as blocks:
        async for block in blocks:
            if rate is not None:
                await rate.take(len(block))
            try:
                async with asyncio.timeout(_STALLED):
                    await response.write(block)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                return response
            traffic.given += len(block)
    return response


async def _blocks(descriptor: int, start: int, end: int) -> AsyncGenerator[bytes, None]:
    """The next block is read while the last one is sent. A file that became shorter ends early: the length tells the asker."""

    def read(at: int) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(asyncio.to_thread(os.pread, descriptor, min(_BLOCK, end - at), at))

    reading = read(start)
    try:
        while start < end and (block := await reading):
            start += len(block)
            reading = read(start)
            yield block
    finally:
        # The descriptor is closed after this, and must not be another file's while something still reads.
        await asyncio.gather(reading, return_exceptions=True)
