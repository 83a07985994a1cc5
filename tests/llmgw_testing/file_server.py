"""An HTTP server of files with the faults that real ones have: cuts, wrong bytes, slow links, no ranges, changed versions."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass(frozen=True)
class Fault:
    """What one answer does wrong. ``cut``: the connection ends after so many bytes; ``stall``: it goes silent there."""

    status: int | None = None
    cut: int | None = None
    stall: bool = False
    wrong: bool = False
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Served:
    data: bytes
    etag: str | None
    ranges: bool = True
    chunked: bool = False
    head: bool = True
    bytes_per_second: float | None = None
    redirect: str | None = None
    token: str | None = None
    faults: list[Fault] = field(default_factory=list)  # one for each answer, then none
    always: Fault | None = None


@dataclass
class Seen:
    method: str
    path: str
    range: str | None
    if_range: str | None
    authorization: str | None
    sent: int = 0


class FileServer:
    """Listens on 127.0.0.1 while entered. ``seen`` has every request in order, with the bytes of body that it was sent."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.files: dict[str, Served] = {}
        self.seen: list[Seen] = []
        self.release = asyncio.Event()  # ends stalls
        self._runner: web.AppRunner | None = None
        self.port = 0

    def put(self, path: str, data: bytes, **options: object) -> Served:
        served = Served(data, f'"{hashlib.md5(data).hexdigest()}"')
        for name, value in options.items():
            setattr(served, name, value)
        self.files[path] = served
        return served

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}{path}"

    def gets(self, path: str) -> list[Seen]:
        return [each for each in self.seen if each.path == path and each.method == "GET"]

    def sent(self, path: str) -> int:
        """Bytes of body sent for this path, over all answers."""
        return sum(each.sent for each in self.gets(path))

    def sent_more_than(self, path: str, count: int) -> bool:
        return self.sent(path) > count

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release.set()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        seen = Seen(request.method, request.path, headers.get("Range"), headers.get("If-Range"), headers.get("Authorization"))
        self.seen.append(seen)
        served = self.files.get(request.path)
        if served is None:
            return web.Response(status=404, text="no such file\n")
        return await self.send(request, served, seen)

    async def send(self, request: web.Request, served: Served, seen: Seen) -> web.StreamResponse:
        if request.method == "HEAD" and not served.head:
            return web.Response(status=405)
        if served.token is not None and seen.authorization != f"Bearer {served.token}":
            return web.Response(status=401)
        if served.redirect is not None:
            return web.Response(status=302, headers={"Location": served.redirect})
        fault = served.always or Fault()
        if request.method == "GET" and served.faults:
            fault = served.faults.pop(0)
        if fault.status is not None:
            return web.Response(status=fault.status, headers=fault.headers)
        data = served.data
        start = self._start(served, seen)
        if start >= len(data) > 0:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
        if fault.wrong:
            data = bytes(each ^ 0xFF for each in data[:64]) + data[64:-1] + bytes([data[-1] ^ 1])
        response = web.StreamResponse(status=206 if start else 200, headers=fault.headers)
        if served.etag is not None:
            response.headers["ETag"] = served.etag
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if served.chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(data) - start
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        return await self._body(request, response, served, fault, data[start:], seen)

    @staticmethod
    def _start(served: Served, seen: Seen) -> int:
        match = _RANGE.match(seen.range or "")
        if match is None or not served.ranges or seen.if_range not in (None, served.etag):
            return 0
        return int(match[1])

    async def _body(
        self, request: web.Request, response: web.StreamResponse, served: Served, fault: Fault, data: bytes, seen: Seen
    ) -> web.StreamResponse:
        end = len(data) if fault.cut is None else min(fault.cut, len(data))
        step = 64 << 10
        try:
            for at in range(0, end, step):
                block = data[at : min(at + step, end)]
                if served.bytes_per_second is not None:
                    await asyncio.sleep(len(block) / served.bytes_per_second)
                await response.write(block)
                seen.sent += len(block)
            if fault.stall:
                await self.release.wait()
            if end < len(data) and request.transport is not None:
                request.transport.close()
        except ConnectionError:
            pass  # the client went; what it was sent is counted
        return response
