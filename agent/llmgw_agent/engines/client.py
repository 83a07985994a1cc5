"""HTTP to one engine, with its key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp


class EngineSilentError(Exception):
    """No answer, or none that makes sense; the text says what was asked and what came."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body read as JSON; None if it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def excerpt(self) -> str:
        return " ".join(self.body[:300].decode(errors="replace").split())


class EngineClient:
    """``url`` is ``http://host:port``. The session is shared and belongs to the caller."""

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str) -> None:
        self.url = url
        self._session = session
        self._headers = {"Authorization": f"Bearer {api_key}", "Connection": "close"}

    async def get(self, path: str, timeout: float) -> Answer:
        """Raises EngineSilentError when nothing answers within ``timeout`` seconds."""
        return await self._ask("GET", path, None, timeout)

    async def post(self, path: str, body: dict[str, Any], timeout: float) -> Answer:
        """Raises EngineSilentError when nothing answers within ``timeout`` seconds."""
        return await self._ask("POST", path, body, timeout)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout: float) -> Answer:
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=self._headers, timeout=limit
            ) as response:
                return Answer(response.status, await response.content.read(1 << 20))
        except TimeoutError:
            raise EngineSilentError(f"{method} {path}: no answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineSilentError(f"{method} {path}: {str(error) or type(error).__name__}") from error
