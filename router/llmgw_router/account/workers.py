"""Figures of all workers: each gives its own on a unix socket in a private folder; whoever is asked adds them up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmgw_router.account.figures import Family, add_up

logger = logging.getLogger(__name__)
_SECONDS = 2.0
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Family]).decode


class Workers:
    """``folder`` is None when this worker is the only one."""

    def __init__(self, folder: Path | None, index: int, own: Callable[[], list[Family]]) -> None:
        self._folder = folder
        self._name = f"{index}.sock"
        self._own = own
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begins to answer siblings and the supervisor, to which an answer is the sign of life."""
        if self._folder is not None:
            path = self._folder / self._name
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(_encode(self._own()))
            await writer.drain()
        except OSError:
            logger.debug("whoever asked for the figures left")
        finally:
            writer.close()

    async def gather(self) -> list[Family]:
        """The sum over all workers that answer."""
        if self._folder is None:
            return self._own()
        others = [each for each in sorted(self._folder.glob("*.sock")) if each.name != self._name]
        answers = await asyncio.gather(*(ask(each) for each in others))
        return add_up([self._own(), *(_decode(each) for each in answers if each)])


async def ask(path: Path) -> bytes | None:
    """What the worker behind the socket answers; None when it does not."""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
